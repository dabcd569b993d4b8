// SPDX-License-Identifier: Apache-2.0
// Requests and replies of the native dialect as bytes and back (engine/requests.h). No other code
// encodes or decodes them.
//
// Pure. Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/contract/status.h"
#include "proto/wire/store_wire.h"
#include "rendezvous/engine/requests.h"

namespace ivy::store {

// Appends the fields of a client's request, without a timeout, and returns its op. Only requests
// that the native dialect has.
Op put_native(std::string& out, const Request& request);
// Writes the first fields of a request that may be repeated; its op has kNumberedOp then.
void put_numbered(std::string& out, const Numbered& numbered);
// Reads a whole payload. DataLoss: not a valid request; InvalidArgument: it names too many keys,
// and only this request is rejected.
Result<Request> take_native(std::uint8_t op, PayloadReader& in, std::uint64_t now_ns);
// The body must not be an Error: that travels as a status and a text.
void put_native_reply(std::string& out, Op op, const ReplyBody& body);
// Reads the whole answer to a request: the kind that its Answer names.
Result<ReplyBody> take_native_answer(const Request& request, PayloadReader& in);
// Reads the whole of what a watch reports; nothing if it is damaged.
std::optional<Changed> take_change(PayloadReader& in);
// Reads a reply that is an error; nothing if it is damaged.
std::optional<Error> take_error(std::uint8_t status, PayloadReader& in);

}  // namespace ivy::store
