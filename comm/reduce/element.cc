#include "comm/reduce/element.h"

#include "proto/contract/status.h"

namespace ivy::comm {
namespace {

enum class Kind : std::uint8_t { kInteger, kBool, kFloat, kComplex };

struct DtypeRow {
  std::string_view name;
  std::uint8_t bytes;
  Kind kind;
};

// In the order of Dtype.
constexpr DtypeRow kDtypes[kDtypeCount] = {
    {"i8", 1, Kind::kInteger},   {"u8", 1, Kind::kInteger},   {"i16", 2, Kind::kInteger},
    {"u16", 2, Kind::kInteger},  {"i32", 4, Kind::kInteger},  {"u32", 4, Kind::kInteger},
    {"i64", 8, Kind::kInteger},  {"u64", 8, Kind::kInteger},  {"f16", 2, Kind::kFloat},
    {"bf16", 2, Kind::kFloat},   {"f32", 4, Kind::kFloat},    {"f64", 8, Kind::kFloat},
    {"bool", 1, Kind::kBool},    {"c64", 8, Kind::kComplex},  {"c128", 16, Kind::kComplex},
    {"f8e4m3", 1, Kind::kFloat}, {"f8e5m2", 1, Kind::kFloat},
};

constexpr std::string_view kReduceOps[kReduceOpCount] = {
    "sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum"};

const DtypeRow& row(Dtype dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  IVY_ASSERT(index < kDtypeCount);
  return kDtypes[index];
}

}  // namespace

std::size_t element_bytes(Dtype dtype) { return row(dtype).bytes; }

std::string_view dtype_name(Dtype dtype) { return row(dtype).name; }

std::string_view reduce_op_name(ReduceOp op) {
  const auto index = static_cast<std::size_t>(op);
  IVY_ASSERT(index < kReduceOpCount);
  return kReduceOps[index];
}

bool is_reducible(Dtype dtype, ReduceOp op) {
  const Kind kind = row(dtype).kind;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kProduct:
      return true;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return kind != Kind::kComplex;
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      return kind == Kind::kInteger || kind == Kind::kBool;
    case ReduceOp::kPremulSum:
      return kind == Kind::kFloat || kind == Kind::kComplex;
  }
  return false;
}

}  // namespace ivy::comm
