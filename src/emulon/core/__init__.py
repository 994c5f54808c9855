"""What everything stands on: errors, files, arrays, memory, the cache, progress, and the predictor protocol."""
