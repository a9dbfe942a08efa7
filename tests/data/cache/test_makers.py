"""Of several processes, threads and forks, one makes an entry; a right dies with its process."""

import contextlib
import subprocess
import sys
import threading

from .entries import content_of, key, put, running

MAKER = """
import sys
from hopyard.data.cache.node import NodeCache
cache = NodeCache(sys.argv[1])
with cache.claim("0" * 63 + "1", wait=True) as claim:
    print("claimed", flush=True)
    claim.file.write(b"half and ")
    sys.stdin.readline()
    claim.file.write(b"half")
    claim.publish({"by": "another process"})
"""


def test_one_process_makes_an_entry_and_others_do_something_else_or_wait(cache):
    with running(MAKER, cache) as maker:
        assert maker.said == "claimed\n"
        assert cache.claim(key(1), wait=False) is None
        put(cache, 2)
        outcome = []

        def wait():
            with cache.claim(key(1), wait=True):
                outcome.append(cache.find(key(1)))

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert cache.find(key(1)) is None
        assert outcome == []
        maker.stdin.write("\n")
        maker.stdin.flush()
        waiting.join()
        [found] = outcome
        assert content_of(found) == b"half and half"
        assert found.description == {"by": "another process"}
        assert maker.wait() == 0


def test_one_of_many_processes_makes_an_entry(cache):
    program = """
import os, sys
from hopyard.data.cache.node import NodeCache
cache = NodeCache(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
with cache.claim("0" * 63 + "1", wait=True) as claim:
    if cache.find(claim.key) is None:
        claim.file.write(b"x" * 100000)
        claim.publish({"pid": os.getpid()})
        print("made")
print(cache.find("0" * 63 + "1").description["pid"])
"""
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(running(program, cache)) for _ in range(3)]
        answers = [process.communicate("\n")[0].split() for process in processes]
    [made] = [answer for answer in answers if answer[0] == "made"]
    assert {answer[-1] for answer in answers} == {made[-1]}


def test_one_of_many_threads_makes_each_entry(cache):
    made, barrier = [], threading.Barrier(8)

    def make_all():
        barrier.wait()
        for number in range(40):
            with cache.claim(key(number), wait=True) as claim:
                if cache.find(claim.key) is None:
                    claim.file.write(claim.key.encode())
                    claim.publish({})
                    made.append(number)

    threads = [threading.Thread(target=make_all) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == list(range(40))
    assert {content_of(cache.find(key(n))) for n in made} == {key(n).encode() for n in made}


FORKS = """
import os, sys, threading, traceback
from hopyard.data.cache import durability as cache_durability
from hopyard.data.cache.node import NodeCache
from hopyard.data.cache.files import Book

cache = NodeCache(sys.argv[1])
one, two = "0" * 63 + "1", "0" * 63 + "2"
real, under_way, go_on = os.fsync, threading.Event(), threading.Event()
def slow(fd):
    under_way.set()
    go_on.wait()
    real(fd)
cache.prepare()
os.fsync = slow
with cache.claim(one, wait=False) as claim:
    claim.publish({})
under_way.wait()  # the daemon thread is at work
claim = cache.claim(two, wait=False)
held, release = threading.Event(), threading.Event()
def hold():
    with cache_durability.durability._lock, Book(sys.argv[1]):
        held.set()
        release.wait()
holder = threading.Thread(target=hold)
holder.start()
held.wait()
read, write = os.pipe()
checked, check = os.pipe()
child = os.fork()
if child == 0:
    os.fsync = real
    try:
        assert cache.find(one) is not None
        assert cache.claim(two, wait=False) is None, "it is the parent's"
        claim.close()
        assert claim.file.closed
        assert os.path.exists(f"{sys.argv[1]}/{two}.part")
        os.write(check, b"x")
        os.close(write)
        os.read(read, 1)  # the parent has let the directory go
        with cache.claim("0" * 63 + "3", wait=False) as mine:
            mine.publish({})
        cache_durability.durability.join()
        with cache.claim(two, wait=True):  # comes when the parent has published
            assert cache.find(two).description == {"by": "parent"}
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
os.close(read)
os.close(check)
os.read(checked, 1)  # or the child has ended
release.set()
holder.join()
os.close(write)
go_on.set()
claim.publish({"by": "parent"})
assert os.waitpid(child, 0)[1] == 0
cache_durability.durability.join()
assert len(cache.entries()) == 3
"""


def test_a_fork_while_locks_are_held_and_the_thread_works_blocks_nobody(cache):
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, str(cache.path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


ORPHAN = """
import os, sys
from hopyard.data.cache.node import NodeCache
claim = NodeCache(sys.argv[1]).claim("0" * 63 + "1", wait=False)
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, b"x")
    sys.stdin.read()
    os._exit(0)
os.read(read, 1)
print("claimed", flush=True)
sys.stdin.readline()
"""


def test_a_claim_dies_with_its_process_though_a_fork_of_it_lives_on(cache):
    with running(ORPHAN, cache) as process:
        assert process.said == "claimed\n"
        assert cache.claim(key(1), wait=False) is None
        process.kill()
        process.wait()
        with cache.claim(key(1), wait=True) as claim:
            claim.publish({})
