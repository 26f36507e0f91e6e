from hetero_airflow.engines.circuit_breaker import PAUSE_S, CircuitBreaker


def test_a_failure_is_followed_by_a_pause_and_an_answer_ends_it(caplog):
    clock = [100.0]
    breaker = CircuitBreaker("The broker", "Tasks wait.", lambda: clock[0])
    assert not breaker.is_open
    for _ in range(2):
        breaker.note_failure(TimeoutError("3 s"))
        assert breaker.is_open
        clock[0] += PAUSE_S
        assert not breaker.is_open, "it is time to try again"
    assert caplog.text.count("The broker does not answer: TimeoutError: 3 s. Tasks wait.") == 1
    breaker.note_failure(OSError("refused"))
    breaker.note_answer()
    assert not breaker.is_open
    breaker.note_failure(TimeoutError("3 s"))
    assert caplog.text.count("TimeoutError") == 2, "an error after an answer is logged again"
