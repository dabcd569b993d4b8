#include "agent/pmix/namespace_name.h"

#include <cstddef>

#include "proto/wire/handshake.h"

namespace ivy {
namespace {

constexpr std::size_t kSecretBytes = 16;

std::string hexadecimal(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

}  // namespace

std::string namespace_name(const std::string& job_id, std::uint32_t generation,
                           std::string_view secret) {
  // A proof for nobody: the handshake's code of the job and the generation under the secret.
  const HandshakeHello hello{.purpose = "pmix",
                             .job_id = job_id,
                             .generation = generation,
                             .nonce = std::string(kNonceBytes, '\0')};
  const std::string code = make_proof(encode_hello(hello), {}, secret);
  return "ivy-" + job_id.substr(0, 8) + "-" + std::to_string(generation) + "-" +
         hexadecimal(std::string_view(code).substr(0, kSecretBytes));
}

}  // namespace ivy
