// Simulated CUDA devices of PyTorch: the guard that autograd and distributed code ask for the current device and stream.
// It executes nothing; operators are intercepted in Python.
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <map>
#include <mutex>

using namespace c10;

namespace {

constexpr int kMostDevices = 64;
int device_count = 1;
thread_local DeviceIndex device_now = 0;
thread_local StreamId stream_now[kMostDevices] = {};

Device cuda(DeviceIndex index) { return Device(DeviceType::CUDA, index); }

struct SimulatedGuard final : impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device device) const override {
    Device old = getDevice();
    uncheckedSetDevice(device);
    return old;
  }
  Device getDevice() const override { return cuda(device_now); }
  void setDevice(Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0) device_now = device.index();
  }
  Stream getStream(Device device) const override {
    DeviceIndex index = device.index() < 0 ? device_now : device.index();
    return Stream(Stream::UNSAFE, cuda(index), stream_now[index]);
  }
  Stream getDefaultStream(Device device) const override { return Stream(Stream::DEFAULT, device); }
  Stream exchangeStream(Stream stream) const override {
    Stream old = getStream(stream.device());
    stream_now[stream.device_index()] = stream.id();
    return old;
  }
  DeviceIndex deviceCount() const noexcept override { return static_cast<DeviceIndex>(device_count); }

  // Streams wait for each other in Python, where their clocks are. Events of the autograd engine order its streams after
  // those of the forward pass, which the order of issue already does.
  void record(void** event, const Stream&, const DeviceIndex, const EventFlag) const override { *event = &device_count; }
  void block(void*, const Stream&) const override {}
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void recordDataPtrOnStream(const DataPtr&, const Stream&) const override {}
};

SimulatedGuard guard;

// Pinned memory of the host is pageable memory with a record of its addresses. Copies of the program test for it.
struct PinnedMemory final : Allocator {
  struct Block {
    DataPtr data;
    PinnedMemory* memory;
  };

  DataPtr allocate(size_t size) override {
    DataPtr data = GetDefaultCPUAllocator()->allocate(size);
    void* start = data.get();
    if (start) {
      std::lock_guard<std::mutex> held(mutex);
      sizes[static_cast<const char*>(start)] = size;
    }
    return DataPtr(start, new Block{std::move(data), this}, &release, Device(DeviceType::CPU));
  }
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    {
      std::lock_guard<std::mutex> held(block->memory->mutex);
      block->memory->sizes.erase(static_cast<const char*>(block->data.get()));
    }
    delete block;
  }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
  bool holds(const void* address) {
    std::lock_guard<std::mutex> held(mutex);
    auto after = sizes.upper_bound(static_cast<const char*>(address));
    if (after == sizes.begin()) return false;
    auto [start, size] = *--after;
    return static_cast<const char*>(address) < start + size;
  }

  std::mutex mutex;
  std::map<const char*, size_t> sizes;
};

// Never freed: tensors outlive static objects.
PinnedMemory& pinned() {
  static auto* memory = new PinnedMemory;
  return *memory;
}

struct SimulatedHooks final : at::CUDAHooksInterface {
  explicit SimulatedHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasCuDNN() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(device_count); }
  DeviceIndex current_device() const override { return device_now; }
  void setCurrentDevice(DeviceIndex device) const override { device_now = device; }
  DeviceIndex getCurrentDevice() const override { return device_now; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override { return maybeExchangeDevice(device); }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    DeviceIndex old = device_now;
    if (device >= 0) device_now = device;
    return old;
  }
  bool isPinnedPtr(const void* address) const override { return pinned().holds(address); }
  Allocator* getPinnedMemoryAllocator() const override { return &pinned(); }
  int getNumGPUs() const override { return device_count; }
};

int capability = 0;

// The kernel of scaled_dot_product_attention that PyTorch prefers on NVIDIA GPUs: cuDNN (3) for 16 bits and heads of up to
// 128 on Hopper and data-centre Blackwell (sdp_utils.cpp, cuDNN from 9.15 on), flash (1) for 16 bits without a mask,
// memory-efficient (2) otherwise, and products (0) for heads that neither supports; of those that the program enables.
int64_t attention_kernel(const at::Tensor& query, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>& mask,
                         double, bool, std::optional<double>, bool) {
  const auto& context = at::globalContext();
  bool half = query.scalar_type() == ScalarType::Half || query.scalar_type() == ScalarType::BFloat16;
  if (query.dim() != 4 || query.sym_size(-1) > 256) return 0;
  bool preferred = (capability / 10 == 9 || capability / 10 == 10) && query.sym_size(-1) <= 128 && query.sym_size(-1) % 8 == 0;
  if (half && preferred && context.userEnabledCuDNNSDP()) return 3;
  if (half && !mask.has_value() && context.userEnabledFlashSDP()) return 1;
  return context.userEnabledMemEfficientSDP() ? 2 : 0;
}

}  // namespace

namespace at::native {
REGISTER_CUDA_DISPATCH(_fused_sdp_choice_stub, &attention_kernel)
}

namespace at {
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, SimulatedHooks)
}

extern "C" {

// Registers `devices` GPUs; must run before PyTorch asks for CUDA for the first time.
__attribute__((visibility("default"))) void clusim_register(int devices) {
  device_count = devices;
  impl::device_guard_impl_registry[static_cast<size_t>(DeviceType::CUDA)].store(&guard);
}

// Sets the compute capability of the GPUs, times ten.
__attribute__((visibility("default"))) void clusim_set_capability(int given) { capability = given; }

__attribute__((visibility("default"))) long clusim_stream(int device) { return stream_now[device]; }
__attribute__((visibility("default"))) void clusim_set_stream(int device, long stream) { stream_now[device] = stream; }
__attribute__((visibility("default"))) int clusim_device(void) { return device_now; }
__attribute__((visibility("default"))) void clusim_set_device(int device) { device_now = static_cast<DeviceIndex>(device); }

}  // extern "C"
