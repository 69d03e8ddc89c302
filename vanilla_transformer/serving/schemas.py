"""The bodies of requests. A field that is not here is refused, since ignoring it would give another answer than was asked for."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

__all__ = ["ChatRequest", "CompletionRequest", "PredictRequest", "TranslateRequest"]


def _whole_characters(text: str) -> str:
    """Refuse half a character, which JSON can spell but no tokenizer can read."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise PydanticCustomError("string_unicode", "half a character")
    return text


Text = Annotated[str, AfterValidator(_whole_characters)]


class _Request(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class TranslateRequest(_Request):
    """What LibreTranslate takes."""

    q: Text | list[Text]
    source: Text = "auto"
    target: Text = ""
    format: Literal["text"] = "text"
    alternatives: int = Field(default=0, ge=0)
    api_key: Text | None = None


class _OpenAIRequest(_Request):
    """What OpenAI's completions and chats have in common.

    `n`, the penalties and `logprobs` are known so that a client may send the values that ask for nothing; `user` and
    `metadata` have no effect.
    """

    model: Text | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    stop: Text | Annotated[list[Text], Field(max_length=4)] | None = None
    stream: bool | None = None
    stream_options: dict[str, bool] | None = None
    n: Literal[1] | None = None
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None
    user: Text | None = None
    metadata: Any = None


class CompletionRequest(_OpenAIRequest):
    """What `POST /v1/completions` takes."""

    prompt: Text | list[Text]
    max_tokens: int | None = Field(default=None, ge=1)
    echo: bool | None = None
    best_of: Literal[1] | None = None
    logprobs: None = None
    suffix: None = None


class ChatMessage(_Request):
    role: Literal["system", "developer", "user", "assistant"]
    content: Text
    name: Text | None = None


class ChatRequest(_OpenAIRequest):
    """What `POST /v1/chat/completions` takes."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: Literal[False] | None = None


class PredictRequest(_Request):
    """What classifiers and encoders take: texts, or questions with their contexts."""

    inputs: Text | dict[Literal["question", "context"], Text] | list[Text | dict[Literal["question", "context"], Text]]
    top_k: int | None = Field(default=None, ge=1, le=1000)
