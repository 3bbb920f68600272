"""Events become transactions, and transactions blocks."""
