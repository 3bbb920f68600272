"""What a source's server says about itself, and where reading begins on it."""
