"""Scores of tagged chunks, such as phrases and names."""

__all__ = ["chunk_scores"]


def chunk_scores(references: list[list[str]], outputs: list[list[str]]) -> tuple[float, float, float]:
    """Return precision, recall and F1 of whole chunks, by seqeval; tags of the BILOU kind are read as IOBES."""
    from seqeval.metrics import f1_score, precision_score, recall_score

    if any(tag.startswith(("L-", "U-")) for row in references for tag in row):
        iobes = {"L": "E", "U": "S"}
        references, outputs = (
            [[iobes.get(tag[0], tag[0]) + tag[1:] for tag in row] for row in rows] for rows in (references, outputs)
        )
    scores = (precision_score, recall_score, f1_score)
    precision, recall, f1 = (float(score(references, outputs, zero_division=0)) for score in scores)
    return precision, recall, f1
