"""Claims of our own, put to the test like everybody's."""
