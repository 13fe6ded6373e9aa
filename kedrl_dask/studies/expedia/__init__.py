"""The Expedia application (sec:realdata): from the file to a page that reads like the paper's section."""
