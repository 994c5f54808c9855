"""What compiled programs are written as: stock models of Hugging Face."""
