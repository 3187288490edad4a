"""The paper's Table (a): MNIST from scattered samples."""
