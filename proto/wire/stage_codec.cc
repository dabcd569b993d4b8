// SPDX-License-Identifier: Apache-2.0
#include "proto/wire/stage_codec.h"

#include <zstd.h>

#include <algorithm>
#include <utility>

namespace ivy::stage {
namespace {

constexpr std::size_t kPrefixBytes = 4;

}  // namespace

std::string framed(std::string_view message) {
  std::string bytes;
  bytes.reserve(kPrefixBytes + message.size());
  for (std::size_t i = 0; i < kPrefixBytes; ++i)
    bytes += static_cast<char>((message.size() >> (8 * i)) & 0xff);
  bytes += message;
  return bytes;
}

void MessageSplitter::feed(std::string_view bytes) {
  if (consumed_ > 0) buffer_.erase(0, std::exchange(consumed_, 0));
  buffer_ += bytes;
}

Result<std::optional<std::string>> MessageSplitter::next() {
  const std::string_view rest = std::string_view(buffer_).substr(consumed_);
  if (rest.size() < kPrefixBytes) return std::optional<std::string>();
  std::size_t length = 0;
  for (std::size_t i = 0; i < kPrefixBytes; ++i)
    length |= static_cast<std::size_t>(static_cast<unsigned char>(rest[i])) << (8 * i);
  if (length > kMaxMessageBytes) return Error{Code::kDataLoss, "a message of --stage is too long"};
  if (rest.size() < kPrefixBytes + length) return std::optional<std::string>();
  consumed_ += kPrefixBytes + length;
  return std::optional<std::string>(rest.substr(kPrefixBytes, length));
}

BlockMap::BlockMap(std::vector<Piece> pieces) : pieces_(std::move(pieces)), begins_{0} {
  for (const Piece& piece : pieces_)
    begins_.push_back(begins_.back() + (piece.size - std::min(piece.from, piece.size)));
}

std::size_t BlockMap::block_bytes(std::uint64_t number) const {
  const std::uint64_t begin = number * kBlockBytes;
  if (begin >= total_bytes()) return 0;
  return static_cast<std::size_t>(std::min<std::uint64_t>(kBlockBytes, total_bytes() - begin));
}

std::vector<Segment> BlockMap::segments(std::uint64_t number) const {
  std::vector<Segment> segments;
  std::uint64_t at = number * kBlockBytes;
  const std::uint64_t end = at + block_bytes(number);
  // The last piece that begins at or before the block.
  auto piece = static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), at) -
                                        begins_.begin() - 1);
  for (; at < end; ++piece) {
    const std::uint64_t stop = std::min(end, begins_[piece + 1]);
    if (stop == at) continue;
    segments.push_back({pieces_[piece].object, pieces_[piece].from + (at - begins_[piece]),
                        static_cast<std::size_t>(stop - at)});
    at = stop;
  }
  return segments;
}

std::string compressed(std::string_view bytes, int level) {
  std::string out(ZSTD_compressBound(bytes.size()), '\0');
  const std::size_t size = ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), level);
  out.resize(ZSTD_isError(size) != 0 ? 0 : size);
  return out;
}

Result<std::string> decompressed(std::string_view bytes, std::size_t size) {
  std::string out(size, '\0');
  if (ZSTD_decompress(out.data(), size, bytes.data(), bytes.size()) != size)
    return Error{Code::kDataLoss, "a compressed block of --stage is damaged"};
  return out;
}

}  // namespace ivy::stage
