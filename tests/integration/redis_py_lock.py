"""Uses redis-py's Lock on the key "k":  redis_py_lock.py PORT hold|wait

hold: takes it, and gives it back when something is pushed to the list "go".
wait: waits up to a minute for it, and gives it back.
Says what it has just done, a word a line.
"""

import sys

import redis

server = redis.Redis(port=int(sys.argv[1]))
lock = server.lock("k", timeout=60, sleep=0.05, blocking_timeout=60)


def say(word):
    print(word, flush=True)


say("waiting")
if not lock.acquire():
    sys.exit("the key was not to be had")
say("acquired")
if sys.argv[2] == "hold":
    server.blpop("go", timeout=60)
lock.release()
say("released")
