"""Making the paper's tables anew: which runs are missing, a sweep that fills them, the small result of each."""
