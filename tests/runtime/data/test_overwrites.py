"""Objects that are overwritten while many processes read them: no content is old, and none is a mixture of two."""

import subprocess
import sys
import threading

from tests.effort import effort
from tests.runtime.data.conftest import Bucket

PART = 4096
PARTS = 5
OBJECTS = 4

READER = """
import itertools, random, sys
from hetero_airflow.errors import DataError
from hetero_airflow.runtime import data
from hetero_airflow.runtime.data import bucket
bucket.PART_BYTES = int(sys.argv[3])  # so that a small object is read in parts
random.seed(int(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    number = random.randrange(int(sys.argv[4]))
    print("begin", number, flush=True)
    sys.stdin.readline()
    try:
        content = data.cached(f"{sys.argv[5]}/data/{number}", revalidate="always").read_bytes()
    except DataError as error:
        print("refused", error, flush=True)
    else:
        numbers = {content[first : first + 8] for first in range(0, len(content), 8)}
        print("read", *(int.from_bytes(number) for number in numbers), flush=True)
"""


class Writer(threading.Thread):
    """Overwrites the objects in turn. Each content is its number, over and over again."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(daemon=True)
        self.bucket = bucket
        self.written = [-1] * OBJECTS
        """The newest number that the store has confirmed, of each object."""
        self.is_over = threading.Event()

    def write(self, number: int) -> None:
        self.bucket.put(f"data/{number % OBJECTS}", number.to_bytes(8) * (PART // 8 * PARTS))
        self.written[number % OBJECTS] = number

    def run(self) -> None:
        number = OBJECTS
        while not self.is_over.wait(0.01):
            self.write(number)
            number += 1


def read(reader: "subprocess.Popen[str]", writer: Writer, answers: list[tuple[int, str]]) -> None:
    """Note for each read what was written before it began, and what it found."""
    assert reader.stdin
    assert reader.stdout
    for line in reader.stdout:
        _, number = line.split()
        before = writer.written[int(number)]
        reader.stdin.write("\n")
        reader.stdin.flush()
        answers.append((before, reader.stdout.readline()))


def test_a_read_that_asks_the_store_is_never_old_and_never_a_mixture(bucket, use):
    reads, count = effort(100, 1250), effort(2, 8)
    writer = Writer(bucket)
    for number in range(OBJECTS):
        writer.write(number)
    answers: list[tuple[int, str]] = []
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", READER, *map(str, (seed, reads, PART, OBJECTS, bucket.url))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(count)
    ]
    threads = [threading.Thread(target=read, args=(reader, writer, answers)) for reader in readers]
    for thread in (writer, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    writer.is_over.set()
    writer.join()
    for reader in readers:
        with reader:
            pass
    assert [reader.returncode for reader in readers] == [0] * count
    found = [(before, [int(number) for number in text.split()[1:]]) for before, text in answers if text[:4] == "read"]
    assert len(answers) == count * reads
    assert len(found) > len(answers) / 2, [text for _, text in answers if text[:4] != "read"][:3]
    assert [numbers for _, numbers in found if len(numbers) != 1] == [], "mixed"
    assert [(before, numbers) for before, numbers in found if numbers[0] < before] == [], "old"
    assert len({numbers[0] for _, numbers in found}) > OBJECTS, "nothing was overwritten meanwhile"
    print(f"{len(found)} reads, {len(answers) - len(found)} refused, {max(writer.written)} contents written")
