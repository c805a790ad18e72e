"""Serves the model's tokenizer and chat template to proxies that do not have them."""

import logging
from dataclasses import dataclass

from quart import Blueprint, Response

from api.text.tokenizing import TextCodec
from api.text_files import ROUTE, TextFilesError, TextParcel, gather
from node.config import NodeConfig

NOT_FOUND = 404
MSGPACK = "application/msgpack"
log = logging.getLogger(__name__)


def parcel_of(config: NodeConfig, codec: TextCodec) -> TextParcel | None:
    """The node's text files; None, with a warning in the log, if they cannot be read."""
    tokenizer = config.tokenizer or config.model
    try:
        return gather(config.model, tokenizer, config.generation_config, codec)
    except (TextFilesError, OSError) as error:
        log.warning("proxies need --tokenizer: the text files cannot be given: %s", error)
        return None


@dataclass(frozen=True, slots=True)
class TextFilesRoute:
    """Serves GET /model/text_files."""

    parcel: TextParcel | None

    def blueprint(self) -> Blueprint:
        """The route as a Quart blueprint."""
        routes = Blueprint("text_files", __name__)
        routes.get(ROUTE)(self.give)
        return routes

    async def give(self) -> Response:
        """The parcel whose digest is in this node's registration."""
        if self.parcel is None:
            return Response("there are no text files here\n", NOT_FOUND)
        return Response(self.parcel.data, mimetype=MSGPACK)
