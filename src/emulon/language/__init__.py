"""Learning algorithms as text: numbers, vocabulary, prompts, transcripts, and the frozen Llama that runs them."""

from emulon.language.model import TextModel, TextRun, load, write
from emulon.language.prompt import prompt, text_of

__all__ = ["TextModel", "TextRun", "load", "prompt", "text_of", "write"]
