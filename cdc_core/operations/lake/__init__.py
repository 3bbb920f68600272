"""Operations on a lake: what a run asks of it and does to it, and what people do."""
