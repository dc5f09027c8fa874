package zoo

var others = []entry{
	image("densenet121", "DenseNet-121", 7978856, densenet(6, 12, 24, 16)),
	image("densenet201", "DenseNet-201", 20013928, densenet(6, 12, 48, 32)),
	image("mobilenet_v2", "MobileNetV2", 3504872, mobilenetV2),
	image("mobilenet_v3_large", "MobileNetV3 Large", 5483032, mobilenetV3Large),
	image("efficientnet_b0", "EfficientNet-B0", 5288548, efficientnetB0),
	image("swin_t", "Swin Tiny", 28288354, swinTiny),
	image("convnext_tiny", "ConvNeXt Tiny", 28589128, convNeXtTiny),
}
