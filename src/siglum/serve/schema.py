"""What requests and answers look like, as types that are checked and told in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from siglum.serve.errors import ServiceError

Number = Annotated[float, Field(allow_inf_nan=False)]
Kind = Literal["image", "text", "both"]
MODES = Literal["exact", "renormalised", "scan", "scan-rescore"]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class FeaturesBody(_Body):
    """Frozen features, as the run's encoder makes them."""

    image: list[Number] | None = None
    text: list[Number] | None = None


class QueryBody(_Body):
    """One query: a text, a picture, both, an item of the index to begin from, or features."""

    text: str | None = Field(None, description="What to look for, in words.")
    image: str | None = Field(None, description="A picture to look for: the bytes of its file in base64.")
    item: str | None = Field(
        None, description="An item to begin from: its picture stands for one, or its text if it has none."
    )
    instruction: str | None = Field(None, description="What kind of thing is wanted, in words.")
    features: FeaturesBody | None = None


class SearchBody(_Body):
    """Queries and how to search."""

    queries: list[QueryBody] = Field(min_length=1)
    k: int = Field(10, ge=1, description="How many hits.")
    beam: int | None = Field(None, ge=1, description="Another beam width than the run's.")
    omega: Number | None = Field(None, ge=0, description="Another fusion weight than the run's.")
    mode: MODES | None = Field(None, description="Another mode than the run's.")
    within: list[str] | None = Field(None, description="Search only these ids.")
    without: list[str] = Field([], description="Leave these ids out.")
    kinds: list[Kind] | None = Field(None, description="Search only items of these kinds.")
    min_score: Number | None = Field(None, description="Leave out hits of a lower score.")
    parts: bool = Field(False, description="Tell of each hit its codes, and what its score is the sum of.")


class DenseBody(_Body):
    """Queries for exhaustive search by vectors."""

    queries: list[QueryBody] = Field(min_length=1)
    k: int = Field(10, ge=1)
    within: list[str] | None = None
    without: list[str] = []
    kinds: list[Kind] | None = None


class ExplainBody(_Body):
    """A query and the item to follow through its beam."""

    query: QueryBody
    target: str = Field(description="The id of the item to follow.")
    beam: int | None = Field(None, ge=1)
    omega: Number | None = Field(None, ge=0)
    mode: MODES | None = None
    within: list[str] | None = None
    without: list[str] = []
    kinds: list[Kind] | None = None
    best: int = Field(5, ge=1, le=50, description="How many of a level's best prefixes are told.")
    pruned: int = Field(3, ge=0, le=50, description="How many of the best that were pruned.")


class HitBody(BaseModel):
    """One hit."""

    rank: int
    id: str
    score: float
    similarity: float | None
    text: str | None
    image: str | None = Field(description="Where its picture is.")
    parts: dict[str, float] | None = Field(None, description="What the score is the sum of, where that was asked.")
    codes: list[int] | None = Field(None, description="Its codes, told together with the parts.")


class SearchReply(BaseModel):
    """The hits of every query."""

    results: list[list[HitBody]]
    items: int = Field(description="Items that were searched, before any filter.")


class NewItem(_Body):
    """An item to add: an id with a text, a picture, both, or features."""

    id: str = Field(min_length=1)
    text: str | None = None
    image: str | None = Field(None, description="The bytes of a picture's file in base64.")
    features: FeaturesBody | None = None


class AddBody(_Body):
    """Items to add, all or none."""

    items: list[NewItem] = Field(min_length=1)
    upsert: bool = Field(False, description="Put them in the place of items that have their ids.")


class RemoveBody(_Body):
    """Items to remove, all or none."""

    ids: list[str] = Field(min_length=1)


class WriteReply(BaseModel):
    """What a write did; it is on the disk."""

    added: int
    removed: int
    items: int


class ItemBody(BaseModel):
    """One item of the index."""

    id: str
    text: str | None
    image: str | None
    codes: list[int]


class ItemsReply(BaseModel):
    """Some items of the index, in pool order."""

    items: list[ItemBody]
    total: int


class _ErrorBody(BaseModel):
    code: str
    message: str


class ErrorReply(BaseModel):
    """What went wrong, in one sentence."""

    error: _ErrorBody


class StateReply(BaseModel):
    """Whether the service is there."""

    status: str


def refusal(error: ValidationError) -> ServiceError:
    """Return the first fault of a request in one sentence."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    first = faults[0]
    place = ".".join(str(part) for part in first["loc"])
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    about = f"{place[:100]}: " if place else ""
    code = "bad_request" if first["type"] == "json_invalid" else "invalid"
    said = "unknown field" if first["type"] == "extra_forbidden" else first["msg"][:1].lower() + first["msg"][1:]
    return ServiceError(code, f"{about}{said[:300]}{more}.")
