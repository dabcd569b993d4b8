// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/shm/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "comm/contract/protocol.h"
#include "proto/contract/text.h"
#include "proto/os/available_memory.h"
#include "proto/os/files.h"

namespace ivy::comm {
namespace {

// Reserves every page except for those of rings now, so that a lack of memory is an error here and
// not a SIGBUS at the first access.
Result<void> reserve(int descriptor, const SegmentGeometry& geometry) {
  const std::size_t bytes = geometry.total_bytes();
  const std::size_t whole = geometry.rings_offset() + geometry.rings_bytes();
  if (ftruncate(descriptor, static_cast<off_t>(whole)) != 0) {
    return errno_error(Code::kResourceExhausted,
                       "set shared memory to " + std::to_string(whole) + " bytes", errno);
  }
  // If more than the available memory were reserved, the out-of-memory killer would kill processes.
  const int failed =
      bytes > available_memory_bytes() ? ENOMEM : reserve_space(descriptor, 0, bytes);
  if (failed != 0) {
    Error error =
        errno_error(Code::kResourceExhausted,
                    "reserve " + std::to_string(bytes) + " bytes of shared memory", failed);
    error.fix = "give the job or container more memory, or run fewer workers on this host";
    return error;
  }
  return {};
}

const std::string kNamed = "/dev/shm/ivycomm-";

Result<void> check_protocol(std::uint64_t peer_protocol) {
  if (peer_protocol == protocol_identity()) return {};
  return Error{Code::kFailedPrecondition,
               "the shared memory belongs to another build of libivycomm, which uses protocol " +
                   hexadecimal(peer_protocol) + ", but this one uses " +
                   hexadecimal(protocol_identity()),
               "let every rank load the same libivycomm"};
}

}  // namespace

SharedSegment::SharedSegment(std::uint8_t* memory, Descriptor descriptor,
                             std::uint32_t member_count)
    : memory_(memory), descriptor_(std::move(descriptor)) {
  geometry_.member_count = member_count;
}

SharedSegment::~SharedSegment() {
  unlink_name();
  munmap(memory_, geometry_.total_bytes());
}

Result<std::unique_ptr<SharedSegment>> SharedSegment::map(Descriptor descriptor,
                                                          std::uint32_t member_count) {
  SegmentGeometry geometry;
  geometry.member_count = member_count;
  struct stat status = {};
  if (fstat(descriptor.get(), &status) != 0 ||
      static_cast<std::size_t>(status.st_size) < geometry.total_bytes()) {
    return Error{Code::kDataLoss, "the shared memory has " + std::to_string(status.st_size) +
                                      " bytes; at least " + std::to_string(geometry.total_bytes()) +
                                      " are needed"};
  }
  void* memory = mmap(nullptr, geometry.total_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED,
                      descriptor.get(), 0);
  if (memory == MAP_FAILED) {
    return errno_error(Code::kResourceExhausted, "map shared memory", errno);
  }
  return std::unique_ptr<SharedSegment>(
      new SharedSegment(static_cast<std::uint8_t*>(memory), std::move(descriptor), member_count));
}

// Every member that adopts a segment calls this, and all write the same values.
Result<void> SharedSegment::write_header() {
  // The kernel's pages are zero, which is the initial value of every atomic in the layout.
  SegmentHeader& header = this->header();
  std::uint64_t first = 0;
  if (!header.protocol.compare_exchange_strong(first, protocol_identity())) {
    IVY_CHECK(check_protocol(first));
  }
  header.version = kSegmentVersion;
  header.member_count = geometry_.member_count;
  header.slot_bytes = kSlotBytes;
  header.total_bytes = geometry_.total_bytes();
  header.magic = kSegmentMagic;
  return {};
}

Result<std::unique_ptr<SharedSegment>> SharedSegment::create(std::uint32_t member_count) {
  SegmentGeometry geometry;
  geometry.member_count = member_count;
  Descriptor descriptor(memfd_create("ivycomm", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (descriptor.get() < 0) return errno_error(Code::kResourceExhausted, "memfd_create", errno);
  IVY_CHECK(reserve(descriptor.get(), geometry));
  fcntl(descriptor.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  std::unique_ptr<SharedSegment> segment = IVY_TRY(map(std::move(descriptor), member_count));
  IVY_CHECK(segment->write_header());
  return segment;
}

std::string SharedSegment::new_path() {
  std::uint64_t numbers[2] = {};
  if (getrandom(numbers, sizeof numbers, 0) != sizeof numbers) {
    numbers[0] = static_cast<std::uint64_t>(getpid());
  }
  return kNamed + std::to_string(getpid()) + "-" + std::to_string(numbers[0]) +
         std::to_string(numbers[1]);
}

Result<std::unique_ptr<SharedSegment>> SharedSegment::create_named(std::uint32_t member_count,
                                                                   const std::string& path) {
  SegmentGeometry geometry;
  geometry.member_count = member_count;
  Descriptor descriptor(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (descriptor.get() < 0) return errno_error(Code::kResourceExhausted, "make " + path, errno);
  const Result<void> reserved = reserve(descriptor.get(), geometry);
  if (!reserved.ok()) {
    unlink(path.c_str());
    return reserved.error();
  }
  Result<std::unique_ptr<SharedSegment>> segment = map(std::move(descriptor), member_count);
  if (!segment.ok()) {
    unlink(path.c_str());
    return segment;
  }
  (*segment)->name_ = path;
  IVY_CHECK((*segment)->write_header());
  return segment;
}

Result<std::unique_ptr<SharedSegment>> SharedSegment::attach(int descriptor,
                                                             std::uint32_t member_count) {
  std::unique_ptr<SharedSegment> segment = IVY_TRY(map(Descriptor(descriptor), member_count));
  const SegmentHeader& header = segment->header();
  if (header.magic == kSegmentMagic) IVY_CHECK(check_protocol(header.protocol.load()));
  if (header.magic != kSegmentMagic || header.version != kSegmentVersion ||
      header.member_count != member_count || header.slot_bytes != kSlotBytes) {
    return Error{Code::kDataLoss,
                 "the shared memory is not a segment of this version for " +
                     std::to_string(member_count) + " ranks",
                 "let every rank load the same libivycomm"};
  }
  return segment;
}

Result<std::unique_ptr<SharedSegment>> SharedSegment::attach_path(const std::string& path,
                                                                  std::uint32_t member_count) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return errno_error(Code::kUnavailable, "open " + path, errno);
  std::unique_ptr<SharedSegment> segment = IVY_TRY(attach(descriptor, member_count));
  // The creator may die before it has removed the name, so the end of this mapping also removes it.
  if (path.starts_with(kNamed)) segment->name_ = path;
  return segment;
}

Result<std::unique_ptr<SharedSegment>> SharedSegment::adopt(int descriptor, int rings_descriptor,
                                                            std::uint32_t member_count) {
  Descriptor rings(rings_descriptor);
  std::unique_ptr<SharedSegment> segment = IVY_TRY(map(Descriptor(descriptor), member_count));
  segment->rings_descriptor_ = std::move(rings);
  IVY_CHECK(segment->write_header());
  return segment;
}

std::string SharedSegment::path() const {
  if (!name_.empty()) return name_;
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(descriptor_.get());
}

void SharedSegment::unlink_name() {
  if (name_.empty()) return;
  unlink(name_.c_str());
  name_.clear();
}

}  // namespace ivy::comm
