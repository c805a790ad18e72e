"""A node's small files that text is made with, for proxies that have none of their own."""

import logging
from dataclasses import dataclass

from quart import Blueprint, Response

from api.text.tokenizing import TextCodec
from api.text_files import ROUTE, Parcel, TextFilesError, gather
from node.config import NodeConfig

NOT_FOUND = 404
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
    """GET /model/text_files."""

    parcel: Parcel | None

    def blueprint(self) -> Blueprint:
        """The one route."""
        routes = Blueprint("text_files", __name__)
        routes.get(ROUTE)(self.give)
        return routes

    async def give(self) -> Response:
        """The parcel that this node's registration names."""
        if self.parcel is None:
            return Response("there are no text files here\n", NOT_FOUND)
        return Response(self.parcel.data, mimetype=MSGPACK)
