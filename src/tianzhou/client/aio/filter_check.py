"""SQL92 expressions are compiled by brokers, so a broker is asked before anything is pulled."""

from collections.abc import Iterable

from tianzhou.client.aio.group_member import GroupMember
from tianzhou.client.aio.shared_client import SharedClient
from tianzhou.client.errors import ClientError, TopicNotFound
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.fastjson import encode


async def check_expressions(
    shared: SharedClient, member: GroupMember, topics: Iterable[str]
) -> None:
    """Raises RemoteError with the broker's words when it does not understand one."""
    for topic in topics:
        wanted = member.subscriptions[topic]
        if wanted.is_tag:
            continue
        try:
            route = await shared.route(topic)
        except TopicNotFound:
            continue  # no broker to ask yet; the first pull reports an invalid expression
        failure: ClientError | None = None
        for broker in route.brokers:
            address = route.any_address(broker)
            if address is None:
                continue
            body = {
                "clientId": shared.client_id,
                "group": member.name,
                "subscriptionData": wanted.to_data(),
            }
            try:
                await shared.call_ok(address, RequestCode.CHECK_CLIENT_CONFIG, {}, encode(body))
                break
            except ClientError as error:
                failure = error
        else:
            if failure is not None:
                raise failure
