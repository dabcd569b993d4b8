// SPDX-License-Identifier: Apache-2.0
// The parts of --stage that both ends share (stage.proto): messages behind their lengths, blocks,
// and compression. Pure; thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"

namespace ivy::stage {

// Small enough that a block never delays a heartbeat for long, large enough for one message each.
inline constexpr std::size_t kBlockBytes = 256u << 10;
// Largest message: a StageReceive that names every object.
inline constexpr std::size_t kMaxMessageBytes = 32u << 20;
// Bounds the memory of manifests on both ends.
inline constexpr std::size_t kMaxEntries = 500'000;
inline constexpr std::size_t kMaxManifestBytes = 256u << 20;
inline constexpr std::size_t kManifestPartBytes = 256u << 10;
// A serialized StagedPython in the directory of an environment.
inline constexpr std::string_view kEnvironmentDescription = ".ivyrun-environment";

// Returns a message behind its length (four bytes, little-endian).
std::string framed(std::string_view message);

// Splits bytes into messages.
class MessageSplitter {
 public:
  void feed(std::string_view bytes);
  // Returns the next message, or nothing. Fails with DataLoss if it is longer than
  // kMaxMessageBytes.
  Result<std::optional<std::string>> next();

 private:
  std::string buffer_;
  std::size_t consumed_ = 0;
};

// Part of an object, which is sent from byte `from` to its end.
struct Piece {
  std::uint32_t object = 0;
  std::uint64_t from = 0;
  std::uint64_t size = 0;  // Of the whole object.
};

// Bytes of one object in one block.
struct Segment {
  std::uint32_t object = 0;
  std::uint64_t offset = 0;  // In the object.
  std::size_t bytes = 0;
};

// Cuts pieces, as one sequence of bytes, into blocks.
class BlockMap {
 public:
  BlockMap() = default;
  explicit BlockMap(std::vector<Piece> pieces);
  std::uint64_t total_bytes() const { return begins_.empty() ? 0 : begins_.back(); }
  std::uint64_t blocks() const { return (total_bytes() + kBlockBytes - 1) / kBlockBytes; }
  std::size_t block_bytes(std::uint64_t number) const;
  std::vector<Segment> segments(std::uint64_t number) const;
  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  std::vector<Piece> pieces_;
  // begins_[i]: position of piece i in the sequence; one more entry for its end.
  std::vector<std::uint64_t> begins_;
};

// Compresses with zstd at `level`.
std::string compressed(std::string_view bytes, int level);
// Fails with DataLoss if the bytes are not the compression of exactly `size` bytes.
Result<std::string> decompressed(std::string_view bytes, std::size_t size);

}  // namespace ivy::stage
