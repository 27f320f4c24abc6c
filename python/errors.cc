#include "python/errors.h"

#include <pybind11/pybind11.h>

#include <string>

namespace hvl::python {
namespace {

namespace py = pybind11;

// What a user of Horovod expects: ValueError for a wrong call, HorovodInternalError for whatever
// went wrong between the ranks (elastic training catches that one and starts a new session).
enum class Exception : std::uint8_t { kValueError, kInternalError, kNotImplementedError };

Exception ExceptionFor(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
      return Exception::kValueError;
    case StatusCode::kNotSupported:
      return Exception::kNotImplementedError;
    case StatusCode::kOk:
    case StatusCode::kMismatch:
    case StatusCode::kUnavailable:
    case StatusCode::kTimeout:
    case StatusCode::kAborted:
    case StatusCode::kResourceExhausted:
    case StatusCode::kInternal:
      return Exception::kInternalError;
  }
  return Exception::kInternalError;
}

[[noreturn]] void ThrowInternalError(const Status& status) {
  const py::object type =
      py::module_::import("horovodlite.exceptions").attr("HorovodInternalError");
  const std::string code(StatusCodeName(status.code()));
  const py::object culprit = status.culprit_rank() == Status::kNoRank
                                 ? py::none()
                                 : py::object(py::int_(status.culprit_rank()));
  const py::object error =
      type(status.message(), py::arg("code") = code, py::arg("culprit_rank") = culprit);
  PyErr_SetObject(type.ptr(), error.ptr());
  throw py::error_already_set();
}

}  // namespace

void Throw(const Status& status) {
  switch (ExceptionFor(status.code())) {
    case Exception::kValueError:
      throw py::value_error(status.message());
    case Exception::kNotImplementedError:
      PyErr_SetString(PyExc_NotImplementedError, status.message().c_str());
      throw py::error_already_set();
    case Exception::kInternalError:
      break;
  }
  ThrowInternalError(status);
}

}  // namespace hvl::python
