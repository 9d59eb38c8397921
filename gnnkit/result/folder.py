"""The names that the leader writes under in a run folder."""

from __future__ import annotations

WORK = "import"  # folder of what an interrupted job=import goes on from
PREPARED = "prepared"  # folder of what the ranks read, removed after the run
SOURCE = "source"  # folder there, of the graph that may be cut again
INPUTS = "inputs.json"  # what a model trained here knows of its data
COORDINATION = "coordination.json"  # the leader's decision
EPOCHS = "epochs.jsonl"  # sums of each epoch, and each evaluation
FAILURE = "failure-{number}.txt"  # what ended the ranks before a restart, with stacks
CLASSES = "classes.json"  # names of classes by number, where there are names
PICTURE = "partition.json"  # the partition in numbers, and a sample of the graph
WORDS = "words_between.npy"  # words of an epoch from each rank to each
PARTITION = "partition"  # folder of the partition, as job=partition leaves it
