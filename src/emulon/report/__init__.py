"""The only place that draws: figures, the HTML pages, and tables on the terminal."""
