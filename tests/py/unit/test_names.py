"""Suffixes that keep optimizers with equal parameter names apart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import horovodlite.torch as hvd
from horovodlite.torch._names import NameClaim


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def test_the_first_has_none_and_the_next_are_counted() -> None:
    claims = [NameClaim(["a", "b"]) for _ in range(3)]
    assert [claim.suffix for claim in claims] == ["", "@2", "@3"]


def test_different_names_need_none() -> None:
    assert NameClaim(["a"]).suffix == NameClaim(["b"]).suffix == ""


def test_one_common_name_is_enough_to_need_one() -> None:
    NameClaim(["a", "b"])
    assert NameClaim(["b", "c"]).suffix == "@2"
    assert NameClaim(["c"]).suffix == "@3"


def test_a_suffix_that_is_given_back_is_used_again() -> None:
    for _ in range(3):
        claim = NameClaim(["a"])
        assert claim.suffix == ""
        claim.give_back()


def test_giving_back_an_older_claim_does_not_disturb_a_younger_one() -> None:
    older, younger = NameClaim(["a"]), NameClaim(["a"])
    older.give_back()
    assert NameClaim(["a"]).suffix == "@3" != younger.suffix


def test_a_new_session_begins_anew_so_that_a_new_rank_agrees() -> None:
    assert [NameClaim(["a"]).suffix for _ in range(2)] == ["", "@2"]
    hvd.shutdown()
    hvd.init()
    assert [NameClaim(["a"]).suffix for _ in range(2)] == ["", "@2"]


def test_claims_that_outlive_a_session_keep_their_suffixes_if_they_can() -> None:
    first, second = NameClaim(["a"]), NameClaim(["a"])
    hvd.shutdown()
    hvd.init()
    second.renew()
    first.renew()
    assert (first.suffix, second.suffix) == ("", "@2")
    assert NameClaim(["a"]).suffix == "@3"


def test_what_is_claimed_before_init_counts_in_the_session_that_follows() -> None:
    hvd.shutdown()
    assert NameClaim(["a"]).suffix == ""
    hvd.init()
    assert NameClaim(["a"]).suffix == "@2"
