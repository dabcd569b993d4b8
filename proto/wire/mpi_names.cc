#include "proto/wire/mpi_names.h"

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

// FNV-1a with 32 bits, as MPICH hashes the name.
std::uint32_t hash_of(std::string_view text) {
  std::uint32_t hash = 2166136261u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

// "1cb6347e": without zeros in front.
std::string short_hexadecimal(std::uint32_t number) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (; number != 0 || text.empty(); number >>= 4) text.insert(text.begin(), kDigits[number & 15]);
  return text;
}

}  // namespace

std::string pmix_namespace(const std::string& job_id, std::uint32_t generation,
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

std::string pmi_name(const std::string& job_id, std::uint32_t generation) {
  constexpr std::size_t kIdBytes = 12;
  return "ivy-" + job_id.substr(0, kIdBytes) + "-" + std::to_string(generation);
}

std::vector<std::string> mpich_segments(std::string_view pmi_name, std::uint32_t host) {
  const std::string end = short_hexadecimal(hash_of(pmi_name)) + "_" + std::to_string(host);
  return {"mpich_shm_" + end, "mpich_vci_" + end};
}

}  // namespace ivy
