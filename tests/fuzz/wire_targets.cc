// SPDX-License-Identifier: Apache-2.0
// Frames and greetings with arbitrary bytes, in pieces of any size.
#include <optional>
#include <vector>

#include "proto/wire/handshake.h"
#include "proto/wire/store_wire.h"
#include "rendezvous/dialects/connection.h"
#include "tests/fuzz/targets.h"

namespace ivy::fuzz {
namespace {

const std::string kJob(32, '0');
const std::string kToken(32, 't');
const std::string kEpoch(kEpochBytes, 'e');

struct Decoded {
  std::vector<store::WireFrame> frames;
  bool failed = false;
};

Decoded decode(std::string_view bytes, std::size_t cut) {
  constexpr std::size_t kMax = 1u << 16;
  store::WireDecoder decoder(kMax);
  Decoded decoded;
  for (std::size_t at = 0; at < bytes.size() && !decoded.failed; at += cut) {
    decoder.feed(bytes.substr(at, cut));
    while (true) {
      Result<std::optional<store::WireFrame>> frame = decoder.next();
      decoded.failed = !frame.ok();
      if (decoded.failed || !*frame) break;
      decoded.frames.push_back(std::move(**frame));
    }
  }
  return decoded;
}

void read_payload(const std::string& payload, std::string_view fields) {
  store::PayloadReader in(payload);
  std::size_t read = 0;
  for (const char field : fields) {
    switch (static_cast<unsigned char>(field) % 5) {
      case 0:
        in.u8();
        break;
      case 1:
        in.u32();
        break;
      case 2:
        in.u64();
        break;
      case 3:
        read += in.text().size();
        break;
      default:
        in.skip_rest();
    }
  }
  IVY_ASSERT(read <= payload.size());
  IVY_ASSERT(!in.done() || in.ok());
}

}  // namespace

// The first byte is the size of the pieces. It must not change the result, which encodes to the
// same bytes again.
void store_wire(std::string_view bytes) {
  Input input(bytes);
  const std::size_t cut = input.byte() % 16 + std::size_t{1};
  const std::string_view stream = input.rest();
  const Decoded whole = decode(stream, std::max<std::size_t>(stream.size(), 1));
  const Decoded pieces = decode(stream, cut);
  IVY_ASSERT(whole.failed == pieces.failed);
  IVY_ASSERT(whole.frames.size() == pieces.frames.size());
  std::string again;
  for (std::size_t i = 0; i < whole.frames.size(); ++i) {
    const store::WireFrame& frame = whole.frames[i];
    IVY_ASSERT(frame.payload == pieces.frames[i].payload);
    store::append_frame(again, frame.head, frame.payload);
    read_payload(frame.payload, stream.substr(0, 16));
  }
  IVY_ASSERT(stream.starts_with(again));
}

void handshake(std::string_view bytes) {
  const Result<HandshakeHello> hello = decode_hello(bytes.substr(0, kHelloBytes));
  if (hello.ok()) {
    const Result<HandshakeHello> again = decode_hello(encode_hello(*hello));
    IVY_ASSERT(again.ok());
    IVY_ASSERT(again->purpose == hello->purpose);
    IVY_ASSERT(again->job_id == hello->job_id);
    IVY_ASSERT(again->nonce == hello->nonce);
  }
  // Such a message cannot be made without the token.
  const std::string_view greeting = bytes.substr(0, kHelloBytes);
  const std::string_view rest = bytes.substr(greeting.size());
  IVY_ASSERT(!check_challenge(greeting, rest.substr(0, kChallengeBytes), kToken).ok());
  if (!hello.ok()) return;
  const std::string nonce(kNonceBytes, 'n');
  const std::string challenge = make_challenge(greeting, kToken, nonce, kEpoch);
  IVY_ASSERT(!check_proof(greeting, challenge, rest, kToken).ok());
  IVY_ASSERT(check_challenge(greeting, challenge, kToken).ok());
}

// The first byte: the size of the pieces, and whether the client knows the token. The rest: its
// greeting after a valid start, and the bytes after the proof.
void native_greeting(std::string_view bytes) {
  Input input(bytes);
  const std::uint8_t first = input.byte();
  const bool knows_token = (first & 1) != 0;
  const std::size_t cut = first / 2 % 64 + std::size_t{1};
  HandshakeHello good;
  good.purpose = "store";
  good.job_id = kJob;
  good.nonce = std::string(kNonceBytes, 'n');
  std::string stream = encode_hello(good).substr(0, input.byte() % (kHelloBytes + 1));
  stream += input.bytes(kHelloBytes - stream.size());

  store::Engine engine;
  const store::StoreIdentity identity{kJob, kToken, kEpoch};
  const auto connection = store::make_native_connection(engine, identity, "127.0.0.1:9");
  store::Replies replies;
  const auto feed = [&](std::string_view what) {
    for (std::size_t at = 0; at < what.size(); at += cut) {
      if (!connection->receive(what.substr(at, cut), 1, replies).ok()) return false;
    }
    return true;
  };
  if (!feed(stream)) {
    IVY_ASSERT(connection->unsent.empty());  // An unauthenticated client gets no answer.
    return;
  }
  const bool challenged = connection->unsent.size() == kChallengeBytes;
  IVY_ASSERT(challenged || connection->unsent.empty());
  if (challenged && knows_token) {
    const bool taken = feed(make_proof(stream, connection->unsent, kToken));
    IVY_ASSERT(taken == connection->is_authenticated());
  }
  feed(input.rest());
  IVY_ASSERT(knows_token || !connection->is_authenticated());
  IVY_ASSERT(knows_token || connection->unsent.size() <= kChallengeBytes);
  for (const store::Reply& reply : replies) {
    if (!connection->reply(reply).ok()) break;
  }
}

}  // namespace ivy::fuzz
