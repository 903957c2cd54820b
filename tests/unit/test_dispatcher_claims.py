from dispatcher.claims import Claims, ClaimSettings

SETTINGS = ClaimSettings(after=300, hold=600, pause=200)


def test_a_claim_needs_a_long_wait() -> None:
    claims = Claims(SETTINGS)

    assert not claims.grant("job", "c1", waited=299, now=1000)
    assert claims.grant("job", "c1", waited=300, now=1001)
    assert claims.claimed("job") == "c1"


def test_one_claim_per_member_and_per_job() -> None:
    claims = Claims(SETTINGS)
    assert claims.grant("job", "c1", waited=500, now=1000)

    assert claims.grant("job", "c1", waited=500, now=1001)
    assert not claims.grant("other", "c1", waited=900, now=1001)
    assert not claims.grant("job", "c2", waited=500, now=1001)
    assert claims.grant("other", "c2", waited=900, now=1001)


def test_a_claim_ends_after_its_time_and_a_pause_follows() -> None:
    claims = Claims(SETTINGS)
    claims.grant("job", "c1", waited=500, now=1000)

    assert claims.expired(1599) == []
    assert claims.expired(1600) == [("job", "c1")]
    assert claims.expired(1600) == []
    assert not claims.grant("job", "c1", waited=1100, now=1799)
    assert claims.grant("job", "c1", waited=1300, now=1800)


def test_who_landed_frees_the_member_after_the_pause_too() -> None:
    claims = Claims(SETTINGS)
    claims.grant("job", "c1", waited=500, now=1000)

    claims.end("job", 1100)
    claims.end("job", 1100)

    assert claims.claimed("job") == ""
    assert not claims.grant("other", "c1", waited=500, now=1299)
    assert claims.grant("other", "c1", waited=500, now=1300)


def test_a_member_that_is_removed_is_forgotten() -> None:
    claims = Claims(SETTINGS)
    claims.grant("job", "c1", waited=500, now=1000)

    claims.forget("c1")

    assert claims.claimed("job") == ""
    assert claims.grant("other", "c1", waited=500, now=1000)
