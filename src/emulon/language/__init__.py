"""Learning algorithms as text: numbers, vocabulary, prompts, transcripts, and the frozen Llama that runs them."""
