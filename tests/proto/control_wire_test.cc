// SPDX-License-Identifier: Apache-2.0
#include "proto/wire/control_wire.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ivy::control {
namespace {

const std::vector<Request> kRequests = {
    Attach{kWireVersion, 7, 2, 4711},
    Segment{"world", 1u << 20, 4, true},
    Segment{std::string(kMaxNameBytes, 'n'), kMaxSegmentBytes, kMaxMembers, false},
    Report{ReportKind::kMismatch, 3, 812, "world", "rank 3 called broadcast"},
    Report{ReportKind::kInternal, kNoRank, 0, "", ""},
    Report{ReportKind::kTimeout, 65'535, ~std::uint64_t{0}, std::string(kMaxNameBytes, 'c'),
           std::string(kMaxTextBytes, 't')},
    Leave{},
    Observe{kWireVersion, 65'535, 3},
};

const std::vector<Reply> kReplies = {
    Attached{kWireVersion, 3, 1u << 16},
    SegmentReady{1u << 20, "world"},
    Rejected{RequestKind::kSegment, Code::kResourceExhausted, "world", "no memory"},
    Rejected{RequestKind::kAttach, Code::kAlreadyExists, "", std::string(kMaxTextBytes, 't')},
    Left{},
    Observed{1u << 18},
};

TEST(ControlWire, EveryRequestSurvivesARoundTrip) {
  for (const Request& request : kRequests) {
    const std::string packet = encode(request);
    EXPECT_LE(packet.size(), kMaxPacketBytes);
    const Result<Request> back = decode_request(packet);
    ASSERT_TRUE(back.ok()) << back.error().message;
    EXPECT_TRUE(*back == request) << "kind " << int{static_cast<unsigned char>(packet[0])};
  }
}

TEST(ControlWire, EveryReplySurvivesARoundTrip) {
  for (const Reply& reply : kReplies) {
    const Result<Reply> back = decode_reply(encode(reply));
    ASSERT_TRUE(back.ok()) << back.error().message;
    EXPECT_TRUE(*back == reply);
  }
}

TEST(ControlWire, PacketsAreLittleEndianWithoutPadding) {
  EXPECT_EQ(encode(Request(Attach{1, 2, 3, 4})),
            std::string("\x01\x01\0\0\0\x02\0\0\0\x03\0\0\0\x04\0\0\0", 17));
}

TEST(ControlWire, RejectsTruncatedPacketsAndExtraBytes) {
  for (const Request& request : kRequests) {
    const std::string packet = encode(request);
    for (std::size_t length = 0; length < packet.size(); ++length)
      EXPECT_FALSE(decode_request(packet.substr(0, length)).ok()) << length;
    EXPECT_FALSE(decode_request(packet + '\0').ok());
  }
  for (const Reply& reply : kReplies) {
    const std::string packet = encode(reply);
    for (std::size_t length = 0; length < packet.size(); ++length)
      EXPECT_FALSE(decode_reply(packet.substr(0, length)).ok()) << length;
    EXPECT_FALSE(decode_reply(packet + '\0').ok());
  }
}

TEST(ControlWire, DoesNotConfuseRequestsAndReplies) {
  for (const Request& request : kRequests) EXPECT_FALSE(decode_reply(encode(request)).ok());
  for (const Reply& reply : kReplies) EXPECT_FALSE(decode_request(encode(reply)).ok());
}

TEST(ControlWire, RejectsFieldsBeyondTheirLimits) {
  EXPECT_FALSE(decode_request(encode(Request(Segment{"a", 0, 1, true}))).ok());
  EXPECT_FALSE(decode_request(encode(Request(Segment{"a", kMaxSegmentBytes + 1, 1, true}))).ok());
  EXPECT_FALSE(decode_request(encode(Request(Segment{"a", 1, 0, true}))).ok());
  EXPECT_FALSE(decode_request(encode(Request(Segment{"a", 1, kMaxMembers + 1, true}))).ok());
  EXPECT_FALSE(decode_request(encode(Request(Segment{"", 1, 1, true}))).ok());
  EXPECT_FALSE(
      decode_request(encode(Request(Report{static_cast<ReportKind>(0), 0, 0, "", ""}))).ok());
  EXPECT_FALSE(
      decode_request(encode(Request(Report{static_cast<ReportKind>(6), 0, 0, "", ""}))).ok());
}

TEST(ControlWire, TruncatesTextsAtTheLimit) {
  const Result<Request> back = decode_request(
      encode(Request(Report{ReportKind::kAborted, 1, 1, "c", std::string(9999, 'x')})));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(std::get<Report>(*back).text.size(), kMaxTextBytes);
}

TEST(ControlWire, ReadsAnotherVersionDespiteUnknownFields) {
  std::string packet = encode(Request(Attach{}));
  packet[1] = 9;
  const Result<Request> back = decode_request(packet + "fields that we do not know");
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(std::get<Attach>(*back).version, 9u);
}

// Any bytes must not crash the decoder, and an accepted request encodes to the same bytes.
TEST(ControlWire, RejectsGarbageWithoutCrashing) {
  std::uint64_t state = 88172645463325252u;
  const auto next = [&state] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  };
  for (int round = 0; round < 200'000; ++round) {
    std::string packet = round % 2 == 0 ? encode(kRequests[next() % kRequests.size()])
                                        : std::string(next() % 64, '\0');
    for (std::uint64_t i = next() % 4; i-- > 0 && !packet.empty();)
      packet[next() % packet.size()] = static_cast<char>(next());
    const Result<Request> request = decode_request(packet);
    // Only the version of a request with another version is decoded.
    const Observe* const observe = request.ok() ? std::get_if<Observe>(&*request) : nullptr;
    const bool is_foreign = observe != nullptr && observe->version != kWireVersion;
    if (request.ok() && std::get_if<Attach>(&*request) == nullptr && !is_foreign) {
      EXPECT_EQ(encode(*request), packet);
    }
    (void)decode_reply(packet);
  }
}

}  // namespace
}  // namespace ivy::control
