"""Texts for the claims about learners of text: named sets as corpora, translations, classes, and how good both are."""
