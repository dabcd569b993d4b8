// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/device_operations.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "comm/reduce/element.h"
#include "tests/comm/operations.h"

namespace ivy::comm::test {
namespace {

template <class T>
void put(std::vector<char>& bytes, T value) {
  const std::size_t end = bytes.size();
  bytes.resize(end + sizeof value);
  std::memcpy(bytes.data() + end, &value, sizeof value);
}

// Writes 1, 2 or 3 in the representation of the type.
void put_element(std::vector<char>& bytes, int dtype, unsigned value) {
  constexpr std::uint16_t kHalves[] = {0x3c00, 0x4000, 0x4200};
  constexpr std::uint8_t kE4m3[] = {0x38, 0x40, 0x44};
  constexpr std::uint8_t kE5m2[] = {0x3c, 0x40, 0x42};
  const auto real = static_cast<float>(value);
  switch (dtype) {
    case IVY_F16:
      return put(bytes, kHalves[value - 1]);
    case IVY_BF16:
      return put(bytes, static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(real) >> 16));
    case IVY_F32:
      return put(bytes, real);
    case IVY_F64:
      return put(bytes, static_cast<double>(value));
    case IVY_C64:
      put(bytes, real);
      return put(bytes, -real);
    case IVY_C128:
      put(bytes, static_cast<double>(value));
      return put(bytes, -static_cast<double>(value));
    case IVY_F8E4M3:
      return put(bytes, kE4m3[value - 1]);
    case IVY_F8E5M2:
      return put(bytes, kE5m2[value - 1]);
    case IVY_BOOL:
      return put(bytes, static_cast<char>(value == 1));
    default:
      break;
  }
  std::uint64_t whole = value;
  const char* const raw = reinterpret_cast<const char*>(&whole);
  bytes.insert(bytes.end(), raw, raw + element_bytes(static_cast<Dtype>(dtype)));
}

std::string hexadecimal(const std::vector<char>& bytes, std::size_t at, std::size_t count) {
  std::string text;
  for (std::size_t i = at; i < std::min(at + count, bytes.size()); ++i) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(bytes[i]));
    text += two;
  }
  return text;
}

// Reports where the device's result differs and in how many elements, because printing all bytes of
// a large result would hide that.
void expect_same(const std::vector<char>& device, const std::vector<char>& host,
                 std::size_t element) {
  ASSERT_EQ(device.size(), host.size());
  std::size_t different = 0;
  std::size_t first = 0;
  std::size_t last = 0;
  for (std::size_t at = 0; at < host.size(); at += element) {
    if (std::memcmp(device.data() + at, host.data() + at, element) == 0) continue;
    if (different++ == 0) first = at;
    last = at;
  }
  EXPECT_EQ(different, 0u) << "of " << host.size() / element << " elements; the first is number "
                           << first / element << ": " << hexadecimal(device, first, element)
                           << ", by the host " << hexadecimal(host, first, element)
                           << "; the last is number " << last / element << ": "
                           << hexadecimal(device, last, element) << ", by the host "
                           << hexadecimal(host, last, element);
}

// Makes the same call on the host and on the device, and compares `receive`.
class Comparison {
 public:
  Comparison(ivy_comm* comm, Device& device, const DeviceCase& one)
      : device_(device),
        one_(one),
        rank_(ivy_comm_rank(comm)),
        element_(element_bytes(static_cast<Dtype>(one.dtype))) {}

  // Allocates buffers of these sizes. `makes` is called with the pointers of one side.
  void check(const char* name, std::size_t send_count, std::size_t receive_count,
             const std::function<int(const void*, void*, const ivy_call*)>& makes,
             const ivy_call* how) {
    names_.insert(name);
    SCOPED_TRACE(std::string(name) + " of " + std::to_string(one_.count) + " " +
                 std::string(dtype_name(static_cast<Dtype>(one_.dtype))) + ", " +
                 std::string(reduce_op_name(static_cast<ReduceOp>(one_.op))));
    const std::vector<char> send = values_of(one_.dtype, send_count, rank_);
    std::vector<char> host(receive_count * element_, 0x55);
    ivy_call plain = {};
    plain.struct_bytes = sizeof plain;
    plain.factor = how != nullptr ? how->factor : 0;
    EXPECT_EQ(makes(send.data(), host.data(), &plain), IVY_OK) << ivy_last_error();
    const DeviceArray from(device_, send);
    const DeviceArray to(device_, std::vector<char>(receive_count * element_, 0x55));
    EXPECT_EQ(makes(from.data(), to.data(), how), IVY_OK) << ivy_last_error();
    if (how != nullptr && (how->flags & IVY_ENQUEUE) != 0) device_.synchronize(how->stream);
    expect_same(to.bytes(), host, element_);
    EXPECT_EQ(from.bytes(), send);
  }
  void check_in_place(const char* name, std::size_t count,
                      const std::function<int(void*, const ivy_call*)>& makes, const ivy_call* how,
                      std::size_t meaningful) {
    names_.insert(name);
    SCOPED_TRACE(std::string(name) + " in place");
    std::vector<char> host = values_of(one_.dtype, count, rank_);
    ivy_call plain = {};
    plain.struct_bytes = sizeof plain;
    plain.factor = how != nullptr ? how->factor : 0;
    const DeviceArray on(device_, host);
    EXPECT_EQ(makes(host.data(), &plain), IVY_OK) << ivy_last_error();
    EXPECT_EQ(makes(on.data(), how), IVY_OK) << ivy_last_error();
    if (how != nullptr && (how->flags & IVY_ENQUEUE) != 0) device_.synchronize(how->stream);
    std::vector<char> got = on.bytes();
    got.resize(meaningful * element_);
    host.resize(meaningful * element_);
    expect_same(got, host, element_);
  }
  // Returns the names of all checked operations.
  std::set<std::string> names() const { return names_; }

 private:
  Device& device_;
  const DeviceCase one_;
  const int rank_;
  const std::size_t element_;
  std::set<std::string> names_;
};

struct Uneven {
  std::vector<std::size_t> counts;
  std::vector<std::size_t> displacements;
  std::size_t total = 0;
};

// Rank r has count + r % 3 elements, each block followed by a gap if has_gaps.
Uneven uneven(std::size_t count, std::size_t ranks, bool has_gaps) {
  Uneven all;
  for (std::size_t r = 0; r < ranks; ++r) {
    all.counts.push_back(count + r % 3);
    all.displacements.push_back(all.total);
    all.total += count + r % 3 + (has_gaps ? 2 : 0);
  }
  return all;
}

void compare_scans(ivy_comm* comm, Comparison& with, const DeviceCase& one, const ivy_call* how) {
  const auto [dtype, op, count] = one;
  with.check(
      "scan", count, count,
      [&](const void* send, void* recv, const ivy_call* call) {
        return ivy_scan(comm, send, recv, count, dtype, op, call);
      },
      how);
  with.check(
      "exscan", count, count,
      [&](const void* send, void* recv, const ivy_call* call) {
        return ivy_exscan(comm, send, recv, count, dtype, op, call);
      },
      how);
}

void compare_reductions(ivy_comm* comm, Comparison& with, const DeviceCase& one,
                        const ivy_call* how) {
  const auto ranks = static_cast<std::size_t>(ivy_comm_size(comm));
  const auto [dtype, op, count] = one;
  const int root = static_cast<int>(ranks) - 1;
  with.check(
      "all_reduce", count, count,
      [&](const void* send, void* recv, const ivy_call* call) {
        return ivy_all_reduce(comm, send, recv, count, dtype, op, call);
      },
      how);
  with.check_in_place(
      "all_reduce", count,
      [&](void* recv, const ivy_call* call) {
        return ivy_all_reduce(comm, IVY_IN_PLACE, recv, count, dtype, op, call);
      },
      how, count);
  with.check(
      "reduce", count, count,
      [&](const void* send, void* recv, const ivy_call* call) {
        return ivy_reduce(comm, send, recv, count, dtype, op, root, call);
      },
      how);
  with.check(
      "reduce_scatter", count * ranks, count,
      [&](const void* send, void* recv, const ivy_call* call) {
        return ivy_reduce_scatter(comm, send, recv, count, dtype, op, call);
      },
      how);
  with.check_in_place(
      "reduce_scatter", count * ranks,
      [&](void* recv, const ivy_call* call) {
        return ivy_reduce_scatter(comm, IVY_IN_PLACE, recv, count, dtype, op, call);
      },
      how, count);
  const Uneven dense = uneven(count, ranks, false);
  const std::size_t own = dense.counts[static_cast<std::size_t>(ivy_comm_rank(comm))];
  with.check(
      "reduce_scatter_v", dense.total, own,
      [&](const void* send, void* recv, const ivy_call* call) {
        return ivy_reduce_scatter_v(comm, send, recv, dense.counts.data(), dtype, op, call);
      },
      how);
  with.check_in_place(
      "reduce_scatter_v", dense.total,
      [&](void* recv, const ivy_call* call) {
        return ivy_reduce_scatter_v(comm, IVY_IN_PLACE, recv, dense.counts.data(), dtype, op, call);
      },
      how, own);
  compare_scans(comm, with, one, how);
  with.check(
      "all_reduce_coalesced", 2 * count, 2 * count,
      [&](const void* send, void* recv, const ivy_call* call) {
        const std::size_t half = count * element_bytes(static_cast<Dtype>(dtype));
        const void* const from[] = {send, static_cast<const char*>(send) + half};
        void* const to[] = {recv, static_cast<char*>(recv) + half};
        const std::size_t counts[] = {count, count};
        return ivy_all_reduce_coalesced(comm, 2, from, to, counts, dtype, op, call);
      },
      how);
}

void compare_moves(ivy_comm* comm, Comparison& with, const DeviceCase& one, const ivy_call* how) {
  const auto ranks = static_cast<std::size_t>(ivy_comm_size(comm));
  const auto rank = static_cast<std::size_t>(ivy_comm_rank(comm));
  const int dtype = one.dtype;
  const std::size_t count = one.count;
  const int root = static_cast<int>(ranks) - 1;
  const Uneven gaps = uneven(count, ranks, true);
  with.check_in_place(
      "broadcast", count,
      [&](void* buffer, const ivy_call* call) {
        return ivy_broadcast(comm, buffer, count, dtype, root, call);
      },
      how, count);
  with.check(
      "all_gather", count, count * ranks,
      [&](const void* send, void* recv, const ivy_call* call) {
        return ivy_all_gather(comm, send, recv, count, dtype, call);
      },
      how);
  with.check_in_place(
      "all_gather", count * ranks,
      [&](void* recv, const ivy_call* call) {
        return ivy_all_gather(comm, IVY_IN_PLACE, recv, count, dtype, call);
      },
      how, count * ranks);
  with.check(
      "all_gather_v", gaps.counts[rank], gaps.total,
      [&](const void* send, void* recv, const ivy_call* call) {
        return ivy_all_gather_v(comm, send, recv, gaps.counts.data(), gaps.displacements.data(),
                                dtype, call);
      },
      how);
}

void compare_roots(ivy_comm* comm, Comparison& with, const DeviceCase& one, const ivy_call* how) {
  const auto ranks = static_cast<std::size_t>(ivy_comm_size(comm));
  const auto rank = static_cast<std::size_t>(ivy_comm_rank(comm));
  const int dtype = one.dtype;
  const std::size_t count = one.count;
  const int root = static_cast<int>(ranks) - 1;
  const Uneven gaps = uneven(count, ranks, true);
  with.check(
      "gather", count, count * ranks,
      [&](const void* send, void* recv, const ivy_call* call) {
        return ivy_gather(comm, send, recv, count, dtype, root, call);
      },
      how);
  with.check(
      "gather_v", gaps.counts[rank], gaps.total,
      [&](const void* send, void* recv, const ivy_call* call) {
        return ivy_gather_v(comm, send, gaps.counts[rank], recv, gaps.counts.data(),
                            gaps.displacements.data(), dtype, root, call);
      },
      how);
  with.check(
      "scatter", count * ranks, count,
      [&](const void* send, void* recv, const ivy_call* call) {
        return ivy_scatter(comm, send, recv, count, dtype, root, call);
      },
      how);
  with.check(
      "scatter_v", gaps.total, gaps.counts[rank],
      [&](const void* send, void* recv, const ivy_call* call) {
        return ivy_scatter_v(comm, send, gaps.counts.data(), gaps.displacements.data(), recv,
                             gaps.counts[rank], dtype, root, call);
      },
      how);
  with.check(
      "all_to_all", count * ranks, count * ranks,
      [&](const void* send, void* recv, const ivy_call* call) {
        return ivy_all_to_all(comm, send, recv, count, dtype, call);
      },
      how);
  // Every rank sends to each rank as many elements as that rank's count.
  const std::vector<std::size_t> from_each(ranks, gaps.counts[rank]);
  with.check(
      "all_to_all_v", gaps.total, gaps.counts[rank] * ranks,
      [&](const void* send, void* recv, const ivy_call* call) {
        return ivy_all_to_all_v(comm, send, gaps.counts.data(), gaps.displacements.data(), recv,
                                from_each.data(), nullptr, dtype, call);
      },
      how);
}

}  // namespace

std::vector<char> values_of(int dtype, std::size_t count, int rank) {
  std::vector<char> bytes;
  for (std::size_t i = 0; i < count; ++i) {
    put_element(bytes, dtype, static_cast<unsigned>((i + static_cast<std::size_t>(rank)) % 3 + 1));
  }
  return bytes;
}

void compare_with_host(ivy_comm* comm, Device& device, const DeviceCase& one, const ivy_call* how) {
  Comparison with(comm, device, one);
  compare_reductions(comm, with, one, how);
  compare_moves(comm, with, one, how);
  compare_roots(comm, with, one, how);
  std::set<std::string> names = {"barrier", "send", "recv", "sendrecv"};  // Not compared here.
  names.merge(with.names());
  EXPECT_EQ(functions_missing_in(names), std::set<std::string>());
}

std::vector<DeviceCase> device_cases(std::size_t count) {
  return {
      {IVY_F32, IVY_SUM, count},        {IVY_F64, IVY_PREMUL_SUM, count},
      {IVY_I32, IVY_MAX, count},        {IVY_U8, IVY_SUM, count},
      {IVY_I64, IVY_MIN, count},        {IVY_BF16, IVY_SUM, count},
      {IVY_F16, IVY_MAX, count},        {IVY_BOOL, IVY_SUM, count},
      {IVY_BOOL, IVY_BAND, count},      {IVY_C64, IVY_SUM, count},
      {IVY_C128, IVY_SUM, count},       {IVY_U64, IVY_PRODUCT, count},
      {IVY_I16, IVY_SUM, count},        {IVY_U32, IVY_BXOR, count},
      {IVY_C64, IVY_PRODUCT, count},    {IVY_F8E4M3, IVY_MAX, count},
      {IVY_I32, IVY_AVG, count},        {IVY_BOOL, IVY_BXOR, count},
      {IVY_F16, IVY_PREMUL_SUM, count}, {IVY_F32, IVY_PREMUL_SUM, count},
  };
}

std::vector<DeviceCase> average_cases(std::size_t count) {
  return {{IVY_F32, IVY_AVG, count}, {IVY_BF16, IVY_AVG, count}, {IVY_C64, IVY_AVG, count}};
}

}  // namespace ivy::comm::test
