"""Learners of text: named sets as corpora, the tasks over them, translations and classes, BLEU and accuracy."""
