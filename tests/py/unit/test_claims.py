"""Suffixes that keep optimizers with equal parameter names apart."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch

import horovodlite.torch as hvd
from horovodlite._session import current_session
from horovodlite.torch._claims import Claim, name_of


class Owner:
    """Counts how often it is replaced."""

    replaced = 0

    def be_replaced(self) -> None:
        self.replaced += 1


def claim_of(names: list[str], owner: Owner | None = None) -> Claim:
    """A claim on new parameters."""
    return Claim(owner or Owner(), [(name, torch.nn.Parameter(torch.ones(1))) for name in names])


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def test_the_first_has_none_and_the_next_are_counted() -> None:
    claims = [claim_of(["a", "b"]) for _ in range(3)]
    assert [claim.suffix for claim in claims] == ["", "@2", "@3"]


def test_different_names_need_none() -> None:
    assert claim_of(["a"]).suffix == claim_of(["b"]).suffix == ""


def test_one_common_name_is_enough_to_need_one() -> None:
    claim_of(["a", "b"])
    assert claim_of(["b", "c"]).suffix == "@2"
    assert claim_of(["c"]).suffix == "@3"


def test_a_parameter_belongs_to_the_newest_claim_whether_or_not_older_ones_live() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    owners = [Owner() for _ in range(3)]
    claims = [
        Claim(owner, [("a", parameter), (str(i), torch.ones(1))]) for i, owner in enumerate(owners)
    ]
    del owners[1]
    assert [claim.suffix for claim in claims] == [""] * 3  # each has given it back
    assert [owner.replaced for owner in owners] == [1, 0]
    for claim in claims[:2]:
        with pytest.raises(RuntimeError, match="handed to a newer one"):
            claim.require_current()
    claims[2].require_current()
    del claims
    gc.collect()
    assert Claim(owners[0], [("a", parameter)]).suffix == ""


def test_a_claim_that_is_replaced_does_not_disturb_a_younger_one() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    Claim(Owner(), [("a", parameter)])
    younger = claim_of(["a"])
    newest = Claim(Owner(), [("b", parameter)])
    assert (younger.suffix, newest.suffix) == ("@2", "")
    assert claim_of(["a"]).suffix == "@3"


def test_more_parameters_may_need_another_suffix() -> None:
    first, second = claim_of(["a"]), claim_of(["b"])
    first.add([("c", torch.nn.Parameter(torch.ones(1)))])
    second.add([("c", torch.nn.Parameter(torch.ones(1)))])
    assert (first.suffix, second.suffix) == ("", "@2")
    assert claim_of(["a"]).suffix == "@2"
    assert claim_of(["b"]).suffix == "@3"


def test_what_cannot_be_reduced_is_not_claimed() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    owner = Owner()
    claim = Claim(owner, [("a", parameter)])
    wrong = ("w", torch.nn.Parameter(torch.ones(1, device="meta")))
    with pytest.raises(NotImplementedError, match="'w'"):
        Claim(Owner(), [("b", parameter), wrong])
    with pytest.raises(NotImplementedError, match="'w'"):
        claim.add([wrong])
    assert owner.replaced == 0
    assert (name_of(parameter), name_of(wrong[1]), name_of(None)) == ("a", "", "")


def test_a_session_that_has_ended_is_let_go() -> None:
    claim_of(["a"])
    ended = weakref.ref(current_session())
    hvd.shutdown()
    gc.collect()
    assert ended() is None


def test_a_new_session_begins_anew_so_that_a_new_rank_agrees() -> None:
    assert [claim_of(["a"]).suffix for _ in range(2)] == ["", "@2"]
    hvd.shutdown()
    hvd.init()
    assert [claim_of(["a"]).suffix for _ in range(2)] == ["", "@2"]


def test_claims_that_outlive_a_session_keep_their_suffixes_if_they_can() -> None:
    first, second = claim_of(["a"]), claim_of(["a"])
    hvd.shutdown()
    hvd.init()
    second.renew()
    first.renew()
    assert (first.suffix, second.suffix) == ("", "@2")
    assert claim_of(["a"]).suffix == "@3"


def test_what_is_claimed_before_init_counts_in_the_session_that_follows() -> None:
    hvd.shutdown()
    assert claim_of(["a"]).suffix == ""
    hvd.init()
    assert claim_of(["a"]).suffix == "@2"
