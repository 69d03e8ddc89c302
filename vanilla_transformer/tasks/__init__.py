"""What a run is for: each task brings its data, tokenizer, model head, batches, scores and words for the card."""

from vanilla_transformer.tasks.classification import SequenceClassification, TokenClassification
from vanilla_transformer.tasks.language_modeling import CausalLanguageModeling, MaskedLanguageModeling
from vanilla_transformer.tasks.parsing import ConstituencyParsing
from vanilla_transformer.tasks.seq2seq import Seq2Seq
from vanilla_transformer.tasks.task import Example, Split, Task, TokenizedSplit

__all__ = ["TASKS", "Example", "Split", "Task", "TokenizedSplit"]

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        Seq2Seq,
        ConstituencyParsing,
        CausalLanguageModeling,
        MaskedLanguageModeling,
        SequenceClassification,
        TokenClassification,
    )
}
