"""Seeds: secret, fresh, derived, and bound by a commitment."""

import hashlib

from autokernel.judge.seeds import Seeds


def test_two_runs_share_nothing():
    assert Seeds.fresh().seed("inputs") != Seeds.fresh().seed("inputs")


def test_a_seed_depends_on_purpose_and_number_and_nothing_else():
    seeds = Seeds(b"k" * 32)
    drawn = {seeds.seed(purpose, n) for purpose in ("inputs", "noise", "inputs1") for n in range(20)}
    assert len(drawn) == 60 and all(0 <= seed < 2**63 for seed in drawn)
    assert Seeds(b"k" * 32).seed("inputs", 7) == seeds.seed("inputs", 7)


def test_the_commitment_binds_the_key_and_does_not_show_it():
    seeds = Seeds.fresh()
    assert seeds.commitment == hashlib.sha256(seeds.key).hexdigest()
    assert seeds.key.hex() not in repr(seeds) and repr(seeds.key) not in repr(seeds)
