"""A node's small files that text is made with, for proxies that have none of their own."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from quart import Blueprint, Response, request

from api.text_files import ROUTE, Parcel, TextFilesError, gather
from api.tokenizing import TextCodec
from discovery.signature import SIGNATURE, check_call
from node.config import NodeConfig

FORBIDDEN, NOT_FOUND = 403, 404
MSGPACK = "application/msgpack"
log = logging.getLogger(__name__)


def parcel_of(config: NodeConfig, codec: TextCodec) -> Parcel | None:
    """What this node can give; None, with a line in the log, where there is nothing to give."""
    tokenizer = config.tokenizer or config.model
    try:
        return gather(config.model, tokenizer, config.generation_config, codec)
    except (TextFilesError, OSError) as error:
        log.warning("proxies need --tokenizer: the text files cannot be given: %s", error)
        return None


@dataclass(frozen=True, slots=True)
class TextDoor:
    """GET /model/text_files. Where the cluster has a key, the call must be signed with it."""

    parcel: Parcel | None
    cluster_key: bytes | None = None
    wall_clock: Callable[[], float] = time.time

    def blueprint(self) -> Blueprint:
        """The one route."""
        routes = Blueprint("text_files", __name__)
        routes.get(ROUTE)(self.give)
        return routes

    async def give(self) -> Response:
        """The parcel that this node's registration names."""
        key, said = self.cluster_key, request.headers.get(SIGNATURE)
        if key is not None and not check_call(said, ROUTE, key, wall_time=self.wall_clock()):
            return Response("the call is not signed with the cluster's key\n", FORBIDDEN)
        if self.parcel is None:
            return Response("there are no text files here\n", NOT_FOUND)
        return Response(self.parcel.data, mimetype=MSGPACK)
