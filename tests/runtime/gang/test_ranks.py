import pytest

from hetero_airflow.runtime.gang.ranks import RankCollectives, process_group, rank


def test_a_process_alone_agrees_with_itself(tmp_path) -> None:
    collectives = RankCollectives()
    assert process_group() is None
    assert (collectives.broadcast(3), collectives.all(False), collectives.all(True)) == (3, False, True)
    assert collectives.folder(tmp_path) == tmp_path
    assert collectives.group() is None
    collectives.wait()


@pytest.mark.parametrize(("text", "expected"), [(None, 0), ("3", 3), ("", 0), ("x", 0)])
def test_torchrun_sets_the_rank_before_a_group_exists(text, expected, monkeypatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    if text is not None:
        monkeypatch.setenv("RANK", text)
    assert rank() == expected
