"""Communicators: tensors and messages between ranks."""

from gnnkit.comm.base import LEADER as LEADER
from gnnkit.comm.base import Arrived as Arrived
from gnnkit.comm.base import Communicator as Communicator
from gnnkit.comm.base import Pending as Pending
from gnnkit.comm.mailbox import DeadlineExceeded as DeadlineExceeded
from gnnkit.comm.mailbox import Mailbox as Mailbox
from gnnkit.comm.mailbox import Message as Message
from gnnkit.comm.mailbox import PeerLost as PeerLost
from gnnkit.comm.survivors import Survivors as Survivors
