// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/shm/peer_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "comm/transports/shm/huge_pages.h"
#include "proto/os/descriptor.h"

namespace ivy::comm {
namespace {

std::uint64_t random_value() {
  std::uint64_t value = 0;
  if (getrandom(&value, sizeof value, 0) != sizeof value)
    value = static_cast<std::uint64_t>(getpid());
  return value | 1;  // Newly allocated memory never has this value.
}

Descriptor open_of(std::int32_t pid, std::int32_t descriptor) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(descriptor);
  return Descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

}  // namespace

PeerMemory::PeerMemory() : value_(random_value()) {}

PeerMemory::~PeerMemory() {
  for (const Mapping& mapping : mappings_) munmap(mapping.memory, mapping.bytes);
}

Probe PeerMemory::own_probe(int segment) const {
  return {getpid(), segment, reinterpret_cast<std::uintptr_t>(&value_), value_};
}

bool PeerMemory::can_read(const Probe& peer_probe) {
  std::uint64_t value = 0;
  return read(peer_probe.pid, &value, peer_probe.address, sizeof value) == 0 &&
         value == peer_probe.value;
}

std::uint64_t PeerMemory::try_out(const Probe& peer_probe, int segment) const {
  std::uint64_t works = can_read(peer_probe) ? kCanRead : 0;
  const Descriptor opened = open_of(peer_probe.pid, peer_probe.descriptor);
  if (!opened) return works;
  struct stat own = {};
  struct stat other = {};
  const bool is_same = fstat(segment, &own) == 0 && fstat(opened.get(), &other) == 0 &&
                       own.st_dev == other.st_dev && own.st_ino == other.st_ino;
  return is_same ? works | kCanMap : works;
}

int PeerMemory::read(std::int32_t pid, void* to, std::uint64_t address, std::size_t bytes) {
  // One call moves less than 2 GiB, and stops early at a page that cannot be read.
  while (bytes > 0) {
    const iovec local = {to, bytes};
    const iovec remote = {reinterpret_cast<void*>(address), bytes};
    const ssize_t got = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (got < 0) return errno;
    if (got == 0) return EIO;
    to = static_cast<std::uint8_t*>(to) + got;
    address += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
  return 0;
}

const std::uint8_t* PeerMemory::map(std::int32_t pid, const BufferLocation& location) {
  for (auto mapping = mappings_.rbegin(); mapping != mappings_.rend(); ++mapping) {
    if (mapping->serial == location.serial && mapping->pid == pid) {
      return mapping->memory + location.offset;
    }
  }
  const Descriptor opened = open_of(pid, location.descriptor);
  if (!opened) return nullptr;
  struct stat status = {};
  const bool is_valid = fstat(opened.get(), &status) == 0 &&
                        location.offset < static_cast<std::uint64_t>(status.st_size);
  const auto bytes = static_cast<std::size_t>(status.st_size);
  void* const memory =
      is_valid ? huge_pages::map(opened.get(), bytes, PROT_READ, MAP_SHARED | MAP_POPULATE)
               : nullptr;
  if (memory == nullptr) return nullptr;
  mappings_.push_back({pid, location.serial, static_cast<std::uint8_t*>(memory), bytes});
  return mappings_.back().memory + location.offset;
}

void PeerMemory::trim() {
  while (mappings_.size() > kMappingsMax) {
    munmap(mappings_.front().memory, mappings_.front().bytes);
    mappings_.pop_front();
  }
}

}  // namespace ivy::comm
