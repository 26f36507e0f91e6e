from hetero_airflow.engines.silence import PAUSE_S, Silence


def test_a_failure_is_followed_by_a_pause_and_an_answer_ends_it(caplog):
    clock = [100.0]
    silence = Silence("The broker", "Tasks wait.", lambda: clock[0])
    assert not silence.is_on
    for _ in range(2):
        silence.note_failure(TimeoutError("3 s"))
        assert silence.is_on
        clock[0] += PAUSE_S
        assert not silence.is_on, "it is time to try again"
    assert caplog.text.count("The broker does not answer: TimeoutError: 3 s. Tasks wait.") == 1
    silence.note_failure(OSError("refused"))
    silence.note_answer()
    assert not silence.is_on
    silence.note_failure(TimeoutError("3 s"))
    assert caplog.text.count("TimeoutError") == 2, "an error after an answer is logged again"
