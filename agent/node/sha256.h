// SHA-256 (FIPS 180-4), to compare a script over hosts. Written out here because the node binary is
// sent to every host and libcrypto.a would double its size for this one function; nothing secret
// passes through it. Pure; thread: any, one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace ivy {

class Sha256 {
 public:
  Sha256();
  void update(std::string_view bytes);
  // 64 hexadecimal digits. Call it once, last.
  std::string finish_hex();

 private:
  void process_block(const unsigned char* block);

  std::array<std::uint32_t, 8> state_;
  std::array<unsigned char, 64> pending_{};
  std::size_t pending_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace ivy
