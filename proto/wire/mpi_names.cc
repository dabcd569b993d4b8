// SPDX-License-Identifier: Apache-2.0
#include "proto/wire/mpi_names.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "proto/contract/text.h"

namespace ivy {
namespace {

constexpr std::size_t kKeyBytes = 16;

struct SipState {
  std::uint64_t v0, v1, v2, v3;

  void round() {
    v0 += v1, v2 += v3;
    v1 = std::rotl(v1, 13) ^ v0, v3 = std::rotl(v3, 16) ^ v2;
    v0 = std::rotl(v0, 32);
    v2 += v1, v0 += v3;
    v1 = std::rotl(v1, 17) ^ v2, v3 = std::rotl(v3, 21) ^ v0;
    v2 = std::rotl(v2, 32);
  }
  void add(std::uint64_t word) {
    v3 ^= word;
    round(), round();
    v0 ^= word;
  }
};

// SipHash-2-4 (Aumasson and Bernstein, 2012), whose result reveals nothing of the key. libcrypto's
// MACs would do as well, but their first use takes a millisecond, a fifth of a small job's start.
std::uint64_t siphash(std::string_view key, std::string_view text) {
  std::uint64_t k[2] = {};
  std::memcpy(k, key.data(), std::min(key.size(), sizeof k));
  SipState state{k[0] ^ 0x736f6d6570736575u, k[1] ^ 0x646f72616e646f6du, k[0] ^ 0x6c7967656e657261u,
                 k[1] ^ 0x7465646279746573u};
  const std::uint64_t length = text.size();
  for (; text.size() >= sizeof(std::uint64_t); text.remove_prefix(sizeof(std::uint64_t))) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data(), sizeof word);
    state.add(word);
  }
  std::uint64_t last = 0;
  if (!text.empty()) std::memcpy(&last, text.data(), text.size());
  state.add(last | length << 56);
  state.v2 ^= 0xff;
  for (int i = 0; i < 4; ++i) state.round();
  return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

// 32-bit FNV-1a, with which MPICH hashes the name.
std::uint32_t hash_of(std::string_view text) {
  std::uint32_t hash = 2166136261u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

// Formats a number without leading zeros, such as "1cb6347e".
std::string short_hexadecimal(std::uint32_t number) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (; number != 0 || text.empty(); number >>= 4) text.insert(text.begin(), kDigits[number & 15]);
  return text;
}

}  // namespace

std::string pmix_namespace(const std::string& job_id, std::uint32_t generation,
                           std::string_view secret) {
  const std::string text = "pmix " + job_id + " " + std::to_string(generation);
  const std::string_view rest = secret.substr(std::min(secret.size(), kKeyBytes));
  return "ivy-" + job_id.substr(0, 8) + "-" + std::to_string(generation) + "-" +
         hexadecimal(siphash(secret.substr(0, kKeyBytes), text)) + hexadecimal(siphash(rest, text));
}

std::string pmi_name(const std::string& job_id, std::uint32_t generation) {
  constexpr std::size_t kIdBytes = 12;
  return "ivy-" + job_id.substr(0, kIdBytes) + "-" + std::to_string(generation);
}

std::vector<std::string> mpich_segments(std::string_view pmi_name, std::uint32_t host) {
  const std::string end = short_hexadecimal(hash_of(pmi_name)) + "_" + std::to_string(host);
  return {"mpich_shm_" + end, "mpich_vci_" + end};
}

std::string spawn_rejected(std::uint32_t rank) {
  return "MPI: rank " + std::to_string(rank) +
         " called MPI_Comm_spawn, which ivyrun does not support: start all ranks together (-n N; a "
         "pool of mpi4py.futures: ivyrun -n N -m mpi4py.futures SCRIPT)";
}

}  // namespace ivy
