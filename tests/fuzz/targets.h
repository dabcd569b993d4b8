// SPDX-License-Identifier: Apache-2.0
// The fuzz targets: each takes arbitrary bytes and aborts if our code handles them wrongly. With
// libFuzzer, each target is a separate program (fuzz_main.cc); corpus_test.cc runs the corpus
// without it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace ivy::fuzz {

void store_wire(std::string_view bytes);
void handshake(std::string_view bytes);
void native_greeting(std::string_view bytes);
void native_dialect(std::string_view bytes);
void torch_dialect_a(std::string_view bytes);
void torch_dialect_c(std::string_view bytes);
void store_client(std::string_view bytes);
void control_wire(std::string_view bytes);
void peer_greeting(std::string_view bytes);
void peer_frames(std::string_view bytes);
void peer_stripes(std::string_view bytes);
void peer_messages(std::string_view bytes);
void flight_record(std::string_view bytes);
void stack_text(std::string_view bytes);
void pmi(std::string_view bytes);

struct Target {
  const char* name;  // Also the name of its folder in corpus/.
  void (*run)(std::string_view bytes);
};
inline constexpr auto kTargets = std::to_array<Target>({
    {"store_wire", store_wire},
    {"handshake", handshake},
    {"native_greeting", native_greeting},
    {"native_dialect", native_dialect},
    {"torch_dialect_a", torch_dialect_a},
    {"torch_dialect_c", torch_dialect_c},
    {"store_client", store_client},
    {"control_wire", control_wire},
    {"peer_greeting", peer_greeting},
    {"peer_frames", peer_frames},
    {"peer_stripes", peer_stripes},
    {"peer_messages", peer_messages},
    {"flight_record", flight_record},
    {"stack_text", stack_text},
    {"pmi", pmi},
});

// Reads an input as a script. After its end, all bytes are zero.
class Input {
 public:
  explicit Input(std::string_view bytes) : rest_(bytes) {}
  bool done() const { return rest_.empty(); }
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const auto value = static_cast<std::uint8_t>(rest_[0]);
    rest_.remove_prefix(1);
    return value;
  }
  std::string_view bytes(std::size_t count) {
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view rest() { return bytes(rest_.size()); }

 private:
  std::string_view rest_;
};

}  // namespace ivy::fuzz
