// The part of DLPack's C interface that tells a tensor's memory from its Python object.
// Source: dlpack.h of DLPack 1.3 (github.com/dmlc/dlpack), whose structs these have to match byte
// for byte. A framework offers them as the capsule `__dlpack_c_exchange_api__` of its tensor type.
#pragma once

#include <cstdint>

namespace hvl::python::dlpack {

inline constexpr const char* kExchangeAttribute = "__dlpack_c_exchange_api__";
inline constexpr const char* kExchangeCapsule = "dlpack_exchange_api";
inline constexpr std::uint32_t kMajorVersion = 1;  ///< another one may have other structs
inline constexpr std::int32_t kCpu = 1;

enum TypeCode : std::uint8_t { kInt = 0, kUint = 1, kFloat = 2, kBfloat = 4, kBool = 6 };

struct Device {
  std::int32_t type;
  std::int32_t id;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t dimensions;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  ///< in elements
  std::uint64_t byte_offset;
};

struct Exchange {
  struct {
    std::uint32_t major, minor;
  } version;
  const Exchange* previous;  ///< the same for an older version, if any
  void (*allocate)();        ///< this and the others without use here have other types in truth
  void (*from_object)();
  void (*to_object)();
  /// Describes a tensor without owning anything: valid while the object lives and does not change.
  /// 0, or -1 with a Python exception set.
  int (*describe)(void* object, Tensor* description);
};

}  // namespace hvl::python::dlpack
