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

// Appends the fields of a client's request, without a timeout, and returns its op. Requires that
// the native dialect has the request.
Op put_native(std::string& out, const Request& request);
// Appends the number of a request that may be repeated, which precedes the request's own fields.
// The request's op then has the bit kNumberedOp.
void put_numbered(std::string& out, const Numbered& numbered);
// Reads a whole payload. Fails with DataLoss if it is not a valid request, and with InvalidArgument
// if it names too many keys; then only this request is rejected.
Result<Request> take_native(std::uint8_t op, PayloadReader& in, std::uint64_t now_ns);
// The body must not be an Error, which travels as a status and a text.
void put_native_reply(std::string& out, Op op, const ReplyBody& body);
// Reads the whole answer to a request, of the type that the request's Answer names.
Result<ReplyBody> take_native_answer(const Request& request, PayloadReader& in);
// Reads a whole change that a watch reports. Returns nothing if it is malformed.
std::optional<Changed> take_change(PayloadReader& in);
// Reads a reply that is an error. Returns nothing if it is malformed.
std::optional<Error> take_error(std::uint8_t status, PayloadReader& in);

}  // namespace ivy::store
