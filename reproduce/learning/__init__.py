"""Claims of Akyürek et al. 2022, What learning algorithm is in-context learning?"""
