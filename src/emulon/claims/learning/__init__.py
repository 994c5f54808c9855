"""Claims of `003_…`, What learning algorithm is in-context learning?"""
